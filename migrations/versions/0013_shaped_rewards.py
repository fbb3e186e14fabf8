"""What shaping reads of an attempt, so that groups are refilled by the rewards that they would be trained with."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trajectories", sa.Column("longest_turn_tokens", sa.Integer(), nullable=True))
    op.add_column("trajectories", sa.Column("components", postgresql.JSONB(), nullable=True))


def downgrade() -> None:
    op.drop_column("trajectories", "components")
    op.drop_column("trajectories", "longest_turn_tokens")
