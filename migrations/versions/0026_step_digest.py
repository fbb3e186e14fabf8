"""Digest of the batch that a step was sent as: the trainer repeats it, and an announcement without it does not count."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("steps", sa.Column("digest", sa.Text()))


def downgrade() -> None:
    op.drop_column("steps", "digest")
