"""Tenants can be deleted; names of deleted tasks, which are content, go."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0022"
down_revision = "0019"
branch_labels = None
depends_on = None

COLUMNS = {"deleted_by": sa.BigInteger(), "deletion": JSONB(), "deleted_at": sa.DateTime(timezone=True)}


def upgrade() -> None:
    for name, kind in COLUMNS.items():
        op.add_column("tenants", sa.Column(name, kind, nullable=True))
    op.execute("UPDATE deleted_tasks SET name = ''")


def downgrade() -> None:
    for name in COLUMNS:
        op.drop_column("tenants", name)
