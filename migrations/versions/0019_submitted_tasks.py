"""Index of tasks that are not accepted yet, by tenant: whose environments are checked, and whose wait for that."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0020"
branch_labels = None
depends_on = None

NAME = "ix_tasks_submitted"


def upgrade() -> None:
    op.create_index(
        NAME, "tasks", ["tenant", "family", "submitted_at", "id"], unique=False, postgresql_where=sa.text("state = 'submitted'")
    )


def downgrade() -> None:
    op.drop_index(NAME, table_name="tasks")
