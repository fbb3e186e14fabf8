"""Homes of tasks in pools that are on several shared accelerators, and which executors read a queue of their own."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None

TASK_HOMES = """
SELECT t.id AS task, t.tenant, t.pool, h.service, h.home ->> 'replica' AS replica, (h.home ->> 'version')::int AS from_version,
       h.home ->> 'before' AS before, to_timestamp((h.home ->> 'since_s')::float8) AS since
FROM tasks t CROSS JOIN LATERAL jsonb_each(t.homes) AS h (service, home)
WHERE t.ended_at IS NULL
"""


def upgrade() -> None:
    op.add_column("tasks", sa.Column("homes", JSONB))
    op.add_column("executors", sa.Column("has_queue", sa.Boolean, nullable=False, server_default=sa.text("false")))
    op.execute(f"CREATE VIEW task_homes AS {TASK_HOMES}")


def downgrade() -> None:
    op.execute("DROP VIEW task_homes")
    op.drop_column("executors", "has_queue")
    op.drop_column("tasks", "homes")
