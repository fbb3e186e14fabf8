"""Numbers of events, so that a client that listens recognises repetitions and gaps."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

# A scheduler of the version before may still be at work when this has run: it gives no numbers.
NUMBER = """
CREATE FUNCTION number_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO event_numbers (tenant, task, last) VALUES (NEW.tenant, NEW.task, 1)
    ON CONFLICT (tenant, task) DO UPDATE SET last = event_numbers.last + 1 RETURNING last INTO NEW.number;
    RETURN NEW;
END $$
"""


def upgrade() -> None:
    op.create_table(
        "event_numbers",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "task", name=op.f("pk_event_numbers")),
    )
    op.add_column("events", sa.Column("number", sa.BigInteger(), nullable=True))
    op.execute(
        "UPDATE events SET number = counted.number FROM ("
        "SELECT id, row_number() OVER (PARTITION BY tenant, task ORDER BY id) AS number FROM events) counted WHERE counted.id = events.id"
    )
    op.execute("INSERT INTO event_numbers SELECT tenant, task, max(number) FROM events GROUP BY tenant, task")
    op.alter_column("events", "number", nullable=False)
    op.create_unique_constraint(op.f("uq_events_tenant_task_number"), "events", ["tenant", "task", "number"])
    op.execute(NUMBER)
    op.execute("CREATE TRIGGER number_event BEFORE INSERT ON events FOR EACH ROW WHEN (NEW.number IS NULL) EXECUTE FUNCTION number_event()")


def downgrade() -> None:
    op.execute("DROP TRIGGER number_event ON events")
    op.execute("DROP FUNCTION number_event()")
    op.drop_column("events", "number")
    op.drop_table("event_numbers")
