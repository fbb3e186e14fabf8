"""Tier in which an executor that was ordered to wake is parked once it is awake, before it is woken again: these moves are measured."""

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("executors", sa.Column("measured", sa.Text))
    op.create_check_constraint(op.f("ck_executors_measured"), "executors", "measured IN ('device', 'host', 'disk', 'none', 'off')")


def downgrade() -> None:
    op.drop_column("executors", "measured")
