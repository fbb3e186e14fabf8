"""Tables of webhooks, and of the messages to them."""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from scheduler_svc.base.tables.base import metadata, moment, now_by_default

webhooks = sa.Table(
    "webhooks",
    metadata,
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id"), primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("events", JSONB, nullable=False),
    sa.Column("secret", sa.LargeBinary, nullable=False),  # sealed: `webhooks/signing.py`
    sa.Column("request", sa.Text, nullable=False),  # of the last change, by which a redelivered job is recognized
    now_by_default("changed_at"),
    sa.Column(
        "busy_until", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("'-infinity'")
    ),  # a replica sends until then
    sa.Column("dropped", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # messages that found too many waiting
)

webhook_deliveries = sa.Table(
    "webhook_deliveries",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("webhook", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False, server_default=sa.text("'msg_' || replace(gen_random_uuid()::text, '-', '')")),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),  # as it is sent: a signature covers its bytes
    sa.Column("state", sa.Text, nullable=False, server_default=sa.text("'waiting'")),
    now_by_default("created_at"),
    sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
    now_by_default("next_at"),
    sa.Column("status", sa.Integer),  # of the last answer
    sa.Column("reason", sa.Text, nullable=False, server_default=sa.text("''")),
    moment("ended_at"),
    sa.CheckConstraint("state IN ('waiting', 'delivered', 'given_up')", name="state"),
    sa.CheckConstraint("(state = 'waiting') = (ended_at IS NULL)", name="ended"),
    sa.ForeignKeyConstraint(["tenant", "webhook"], ["webhooks.tenant", "webhooks.name"], ondelete="CASCADE"),
    sa.Index(None, "tenant", "webhook", "id"),
    sa.Index("ix_webhook_deliveries_waiting", "next_at", postgresql_where=sa.text("state = 'waiting'")),
)
