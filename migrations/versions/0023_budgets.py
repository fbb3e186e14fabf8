"""Budgets of tenants, and what each task has paid, kept by triggers in the price of its time."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

# A writer of the ledger that has begun and not written yet has an earlier time than the price; one that begins now waits for the lock.
# So the triggers, which see committed prices, and the view, which compares times, agree about every row.
KEEP_PRICES = """
CREATE OR REPLACE FUNCTION keep_prices() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        RAISE EXCEPTION 'a price is never changed or deleted, since invoices refer to it; add one that is valid from now on';
    END IF;
    LOCK TABLE ledger IN SHARE ROW EXCLUSIVE MODE;
    NEW.valid_from := coalesce(NEW.valid_from, clock_timestamp());
    IF NEW.valid_from < now() THEN
        RAISE EXCEPTION 'a price is not valid from a moment in the past: %', NEW.valid_from USING ERRCODE = 'check_violation';
    END IF;
    NEW.valid_from := greatest(NEW.valid_from, clock_timestamp());
    RETURN NEW;
END $$
"""
KEEP_PRICES_BEFORE = """
CREATE OR REPLACE FUNCTION keep_prices() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        RAISE EXCEPTION 'a price is never changed or deleted, since invoices refer to it; add one that is valid from now on';
    ELSIF NEW.valid_from < now() THEN
        RAISE EXCEPTION 'a price is not valid from a moment in the past: %', NEW.valid_from USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$
"""
UNIT_PRICE = """
CREATE FUNCTION unit_price(of_kind text, of_pool text, at timestamptz) RETURNS numeric LANGUAGE sql STABLE AS $$
    SELECT price * ('1e-' || (length(per::text) - 1))::numeric FROM prices
    WHERE kind = of_kind AND (pool IS NULL OR pool = of_pool) AND valid_from <= at
    ORDER BY pool, valid_from DESC, id DESC LIMIT 1
$$
"""
COUNT = """
CREATE OR REPLACE FUNCTION count_booked() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tasks SET booked_tokens = booked_tokens + total.booked, sampled_tokens = sampled_tokens + total.sampled,
                     paid_tokens = paid_tokens + total.paid
    FROM (SELECT task, sum(tokens) AS booked, coalesce(sum(tokens) FILTER (WHERE kind = 'sampled'), 0) AS sampled,
                 coalesce(sum(tokens) FILTER (WHERE paid_by = 'tenant'), 0) AS paid
          FROM booked WHERE kind NOT IN ('env_ms', 'stored_byte_hours') GROUP BY task) total
    WHERE tasks.id = total.task;
    IF EXISTS (SELECT FROM prices) THEN
        UPDATE tasks SET paid_money = paid_money + total.money
        FROM (SELECT b.task, sum(b.tokens * unit_price(b.kind, t.pool, b.at)) AS money
              FROM booked b JOIN tasks t ON t.id = b.task WHERE b.paid_by = 'tenant' GROUP BY b.task) total
        WHERE tasks.id = total.task AND total.money <> 0;
    END IF;
    RETURN NULL;
END $$
"""
COUNT_BEFORE = """
CREATE OR REPLACE FUNCTION count_booked() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tasks SET booked_tokens = booked_tokens + total.booked, sampled_tokens = sampled_tokens + total.sampled
    FROM (SELECT task, sum(tokens) AS booked, coalesce(sum(tokens) FILTER (WHERE kind = 'sampled'), 0) AS sampled
          FROM booked WHERE kind NOT IN ('env_ms', 'stored_byte_hours') GROUP BY task) total
    WHERE tasks.id = total.task;
    RETURN NULL;
END $$
"""
FORGIVE = """
CREATE FUNCTION count_forgiven() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tasks SET paid_tokens = paid_tokens - total.tokens, paid_money = paid_money - total.money
    FROM (SELECT n.task, coalesce(sum(n.tokens) FILTER (WHERE n.kind NOT IN ('env_ms', 'stored_byte_hours')), 0) AS tokens,
                 coalesce(sum(n.tokens * unit_price(n.kind, t.pool, n.at)), 0) AS money
          FROM changed n JOIN former o ON o.id = n.id JOIN tasks t ON t.id = n.task
          WHERE o.paid_by = 'tenant' AND n.paid_by = 'nobody' GROUP BY n.task) total
    WHERE tasks.id = total.task;
    RETURN NULL;
END $$
"""
PAID = """
UPDATE tasks SET paid_tokens = l.tokens, paid_money = l.money FROM (
    SELECT task, coalesce(sum(quantity) FILTER (WHERE kind IN ('prompt', 'sampled', 'trained', 'evaluation')), 0)::bigint AS tokens,
           sum(money) AS money FROM task_invoice GROUP BY task) l
WHERE l.task = tasks.id
"""


def upgrade() -> None:
    op.add_column("tasks", sa.Column("paid_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.add_column("tasks", sa.Column("paid_money", sa.Numeric(), server_default=sa.text("0"), nullable=False))
    op.add_column("tasks", sa.Column("over_budget", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.create_check_constraint(op.f("ck_tasks_over_budget"), "tasks", "NOT over_budget OR state <> 'running'")
    op.create_index("ix_tasks_over_budget", "tasks", ["id"], unique=False, postgresql_where=sa.text("over_budget"))
    op.execute(PAID)
    op.alter_column("prices", "valid_from", server_default=None)
    op.execute(KEEP_PRICES)
    op.execute(UNIT_PRICE)
    op.execute(COUNT)
    op.execute(FORGIVE)
    op.execute(
        "CREATE TRIGGER count_forgiven AFTER UPDATE ON ledger REFERENCING OLD TABLE AS former NEW TABLE AS changed "
        "FOR EACH STATEMENT EXECUTE FUNCTION count_forgiven()"
    )
    op.create_table(
        "budgets",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("period", sa.Text(), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("amount", sa.Numeric(), nullable=False),
        sa.Column("begins_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("before", sa.Numeric(), nullable=False),
        sa.Column("reported", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.CheckConstraint("period IN ('day', 'month', 'total')", name=op.f("ck_budgets_period")),
        sa.CheckConstraint("unit IN ('tokens', 'money')", name=op.f("ck_budgets_unit")),
        sa.CheckConstraint("amount >= 0 AND amount < 'infinity'", name=op.f("ck_budgets_amount")),
        sa.CheckConstraint("reported IN ('', 'nearly', 'used_up')", name=op.f("ck_budgets_reported")),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], name=op.f("fk_budgets_tenant")),
        sa.PrimaryKeyConstraint("tenant", "period", "unit", name=op.f("pk_budgets")),
    )


def downgrade() -> None:
    op.drop_table("budgets")
    op.execute("DROP TRIGGER count_forgiven ON ledger")
    op.execute("DROP FUNCTION count_forgiven()")
    op.execute(COUNT_BEFORE)
    op.execute("DROP FUNCTION unit_price(text, text, timestamptz)")
    op.execute(KEEP_PRICES_BEFORE)
    op.alter_column("prices", "valid_from", server_default=sa.text("now()"))
    op.drop_index("ix_tasks_over_budget", table_name="tasks")
    op.drop_constraint(op.f("ck_tasks_over_budget"), "tasks", type_="check")
    for name in ("over_budget", "paid_money", "paid_tokens"):
        op.drop_column("tasks", name)
