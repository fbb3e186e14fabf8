"""A task's totals stand in its row, and what is rare in its past has an index, so that a step costs the same however long the past is."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

INDEXES = (
    ("ix_tasks_started", "tasks", ["id"], "start IS NOT NULL"),
    ("ix_groups_void", "groups", ["task", "ended_at"], "state = 'void'"),
    ("ix_trajectories_scored", "trajectories", ["task", "sequence"], "state = 'scored'"),
    ("ix_steps_batched", "steps", ["task"], "state = 'batched'"),
    ("ix_evaluation_groups_version", "evaluation_groups", ["task", "version"], None),
)
# A trigger, and no statement of the scheduler's: one of the version before may still be at work when this has run.
COUNT = """
CREATE FUNCTION count_booked() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tasks SET booked_tokens = booked_tokens + total.booked, sampled_tokens = sampled_tokens + total.sampled
    FROM (SELECT task, sum(tokens) AS booked, coalesce(sum(tokens) FILTER (WHERE kind = 'sampled'), 0) AS sampled
          FROM booked GROUP BY task) total
    WHERE tasks.id = total.task;
    RETURN NULL;
END $$
"""


def upgrade() -> None:
    for name in ("booked_tokens", "sampled_tokens"):
        op.add_column("tasks", sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.execute(
        "UPDATE tasks SET booked_tokens = l.booked, sampled_tokens = l.sampled FROM ("
        "SELECT task, sum(tokens) AS booked, coalesce(sum(tokens) FILTER (WHERE kind = 'sampled'), 0) AS sampled FROM ledger GROUP BY task"
        ") l WHERE l.task = tasks.id"
    )
    op.execute(COUNT)
    op.execute(
        "CREATE TRIGGER count_booked AFTER INSERT ON ledger REFERENCING NEW TABLE AS booked FOR EACH STATEMENT EXECUTE FUNCTION count_booked()"
    )
    for name, table, columns, rows in INDEXES:
        op.create_index(name, table, columns, unique=False, postgresql_where=sa.text(rows) if rows else None)


def downgrade() -> None:
    for name, table, _, _ in reversed(INDEXES):
        op.drop_index(name, table_name=table)
    op.execute("DROP TRIGGER count_booked ON ledger")
    op.execute("DROP FUNCTION count_booked()")
    for name in ("sampled_tokens", "booked_tokens"):
        op.drop_column("tasks", name)
