"""Digest of a task as it was submitted, so that a repeated submission is known although its pool's defaults have changed."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tasks", sa.Column("submission", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("tasks", "submission")
