"""The bill: who pays for an entry of the ledger, time of environments and stored bytes as kinds, prices, invoices by day."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0018"
branch_labels = None
depends_on = None

BEFORE = "kind IN ('prompt', 'sampled', 'trained', 'evaluation')"
KINDS = "kind IN ('prompt', 'sampled', 'trained', 'evaluation', 'env_ms', 'stored_byte_hours')"
COUNT = """
CREATE OR REPLACE FUNCTION count_booked() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tasks SET booked_tokens = booked_tokens + total.booked, sampled_tokens = sampled_tokens + total.sampled
    FROM (SELECT task, sum(tokens) AS booked, coalesce(sum(tokens) FILTER (WHERE kind = 'sampled'), 0) AS sampled
          FROM booked{only} GROUP BY task) total
    WHERE tasks.id = total.task;
    RETURN NULL;
END $$
"""
ONLY_TOKENS = " WHERE kind NOT IN ('env_ms', 'stored_byte_hours')"
KEEP_PRICES = """
CREATE FUNCTION keep_prices() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        RAISE EXCEPTION 'a price is never changed or deleted, since invoices refer to it; add one that is valid from now on';
    ELSIF NEW.valid_from < now() THEN
        RAISE EXCEPTION 'a price is not valid from a moment in the past: %', NEW.valid_from USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$
"""
TASK_INVOICE = """
SELECT l.task, l.tenant, (l.at AT TIME ZONE 'UTC')::date AS day, t.pool,
       CASE WHEN l.paid_by = 'tenant' THEN l.kind WHEN l.kind = 'env_ms' THEN 'void_env_ms' ELSE 'void' END AS kind,
       sum(l.tokens) AS quantity,
       sum(CASE WHEN l.paid_by = 'tenant' THEN l.tokens * coalesce(p.each, 0) ELSE 0 END) AS money
FROM ledger l JOIN tasks t ON t.id = l.task
LEFT JOIN LATERAL (
    SELECT price * ('1e-' || (length(per::text) - 1))::numeric AS each FROM prices
    WHERE prices.kind = l.kind AND (prices.pool IS NULL OR prices.pool = t.pool) AND prices.valid_from <= l.at
    ORDER BY prices.pool, prices.valid_from DESC, prices.id DESC LIMIT 1) p ON true
GROUP BY 1, 2, 3, 4, 5
"""
TENANT_INVOICE = """
SELECT tenant, day, pool, kind, sum(quantity) AS quantity, sum(money) AS money
FROM (SELECT tenant, day, pool, kind, quantity, money FROM task_invoice
      UNION ALL SELECT tenant, day, pool, kind, quantity, money FROM deleted_usage) used
GROUP BY tenant, day, pool, kind
"""
# What was deleted before has no pool and one day, that of its end.
OF_DELETED = """
INSERT INTO deleted_usage (task, day, kind, tenant, pool, quantity, money)
SELECT d.id, (d.ended_at AT TIME ZONE 'UTC')::date, k.kind, d.tenant, '', k.tokens, 0
FROM deleted_tasks d CROSS JOIN LATERAL (VALUES ('prompt', d.prompt_tokens), ('sampled', d.sampled_tokens), ('trained', d.trained_tokens),
                                                ('evaluation', d.evaluation_tokens)) k (kind, tokens)
WHERE k.tokens > 0
"""


def upgrade() -> None:
    op.add_column("ledger", sa.Column("paid_by", sa.Text(), server_default=sa.text("'tenant'"), nullable=False))
    op.create_check_constraint(op.f("ck_ledger_paid_by"), "ledger", "paid_by IN ('tenant', 'nobody')")
    op.drop_constraint(op.f("ck_ledger_kind"), "ledger", type_="check")
    op.create_check_constraint(op.f("ck_ledger_kind"), "ledger", KINDS)
    op.execute(COUNT.format(only=ONLY_TOKENS))
    op.create_table(
        "prices",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=True),
        sa.Column("price", sa.Numeric(), nullable=False),
        sa.Column("per", sa.BigInteger(), nullable=False),
        sa.Column("valid_from", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("request", sa.Text(), nullable=True),
        sa.CheckConstraint(KINDS, name=op.f("ck_prices_kind")),
        sa.CheckConstraint("price >= 0 AND price < 'infinity'", name=op.f("ck_prices_price")),
        sa.CheckConstraint("per > 0 AND per::text ~ '^10*$'", name=op.f("ck_prices_per")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_prices")),
        sa.UniqueConstraint("request", name=op.f("uq_prices_request")),
    )
    op.create_index("ix_prices_kind_pool_valid_from", "prices", ["kind", "pool", "valid_from"], unique=False)
    op.execute(KEEP_PRICES)
    op.execute("CREATE TRIGGER keep_prices BEFORE INSERT OR UPDATE OR DELETE ON prices FOR EACH ROW EXECUTE FUNCTION keep_prices()")
    op.execute("CREATE TRIGGER keep_all_prices BEFORE TRUNCATE ON prices FOR EACH STATEMENT EXECUTE FUNCTION keep_prices()")
    op.create_table(
        "deleted_usage",
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("quantity", sa.Numeric(), nullable=False),
        sa.Column("money", sa.Numeric(), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], name=op.f("fk_deleted_usage_tenant")),
        sa.PrimaryKeyConstraint("task", "day", "kind", name=op.f("pk_deleted_usage")),
    )
    op.create_index("ix_deleted_usage_tenant_day", "deleted_usage", ["tenant", "day"], unique=False)
    op.execute(OF_DELETED)
    op.execute(f"CREATE VIEW task_invoice AS {TASK_INVOICE}")
    op.execute(f"CREATE VIEW tenant_invoice AS {TENANT_INVOICE}")


def downgrade() -> None:
    op.execute("DROP VIEW tenant_invoice")
    op.execute("DROP VIEW task_invoice")
    op.drop_table("deleted_usage")
    op.drop_table("prices")
    op.execute("DROP FUNCTION keep_prices()")
    op.execute(COUNT.format(only=""))
    op.execute("DELETE FROM ledger WHERE kind IN ('env_ms', 'stored_byte_hours')")
    op.drop_constraint(op.f("ck_ledger_kind"), "ledger", type_="check")
    op.create_check_constraint(op.f("ck_ledger_kind"), "ledger", BEFORE)
    op.drop_column("ledger", "paid_by")
