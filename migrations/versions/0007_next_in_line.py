"""Who admits next is found by an index; what a group is expected to take is kept with its task."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

MAY_ADMIT = "state = 'running' AND least(version + max_staleness + 1, steps) * groups_per_step - admitted + voided > 0"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("group_tokens", sa.Double(), nullable=True))
    op.create_index(
        "ix_tasks_may_admit",
        "tasks",
        ["tenant", sa.text("priority DESC"), "virtual_time", "id"],
        unique=False,
        postgresql_where=sa.text(MAY_ADMIT),
    )


def downgrade() -> None:
    op.drop_index("ix_tasks_may_admit", "tasks")
    op.drop_column("tasks", "group_tokens")
