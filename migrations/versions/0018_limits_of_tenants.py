"""Limits of tenants: priority ceiling, live tasks, sequences in flight, tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

COLUMNS = {"priority_ceiling": sa.Integer(), "max_tasks": sa.Integer(), "max_sequences": sa.Integer(), "max_tokens": sa.BigInteger()}


def upgrade() -> None:
    for name, kind in COLUMNS.items():
        op.add_column("tenants", sa.Column(name, kind, nullable=True))


def downgrade() -> None:
    for name in COLUMNS:
        op.drop_column("tenants", name)
