"""Indexes on slices for what is read each second: the latest move to the device, and an executor's slices of the last hour."""

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

MOVED = "from_tier <> 'device' AND awake_at IS NOT NULL"


def upgrade() -> None:
    op.create_index("ix_slices_moved", "slices", ["accelerator", "epoch"], postgresql_where=sa.text(MOVED))
    op.create_index("ix_slices_accelerator_executor_ended_at", "slices", ["accelerator", "executor", "ended_at"])


def downgrade() -> None:
    op.drop_index("ix_slices_accelerator_executor_ended_at", "slices")
    op.drop_index("ix_slices_moved", "slices")
