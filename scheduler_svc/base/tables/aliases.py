"""Table of aliases, names of tenants for versions of their tasks."""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from scheduler_svc.base.tables.base import metadata, now_by_default

aliases = sa.Table(
    "aliases",
    metadata,
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id"), primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("task", sa.Text, sa.ForeignKey("tasks.id"), nullable=False),  # no cascade: a task that has one is not deleted
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("adapter", JSONB, nullable=False),
    sa.Column("request", sa.Text, nullable=False),  # of the last change, by which a redelivered job is recognized
    now_by_default("changed_at"),
    sa.CheckConstraint("version > 0", name="version"),
    sa.Index(None, "task"),
)
