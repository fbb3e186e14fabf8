"""Retention by tenant: days after a task's end, 0 for ever; what of a task has been announced and deleted."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

KINDS = ("adapters", "checkpoints", "batches", "events", "tasks")
COLUMNS = {"expiring": "'{}'", "expired": "'[]'"}


def upgrade() -> None:
    for kind in KINDS:
        op.add_column("tenants", sa.Column(f"{kind}_days", sa.Integer(), nullable=False, server_default=sa.text("0")))
    for name, default in COLUMNS.items():
        op.add_column("tasks", sa.Column(name, JSONB(), nullable=False, server_default=sa.text(default)))


def downgrade() -> None:
    for kind in KINDS:
        op.drop_column("tenants", f"{kind}_days")
    for name in COLUMNS:
        op.drop_column("tasks", name)
