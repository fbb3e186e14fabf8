"""Served tokens: each request that was served, and what tenants pay for them by day."""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

KINDS = "kind IN ('prompt', 'sampled', 'trained', 'evaluation', 'env_ms', 'stored_byte_hours'{more})"
SERVED = "'served_prompt', 'served_sampled'"
# A writer of the ledger or of a request that has begun and not written yet has an earlier time than the price; one that begins now waits.
KEEP_PRICES = """
CREATE OR REPLACE FUNCTION keep_prices() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        RAISE EXCEPTION 'a price is never changed or deleted, since invoices refer to it; add one that is valid from now on';
    END IF;
    LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE;
    NEW.valid_from := coalesce(NEW.valid_from, clock_timestamp());
    IF NEW.valid_from < now() THEN
        RAISE EXCEPTION 'a price is not valid from a moment in the past: %', NEW.valid_from USING ERRCODE = 'check_violation';
    END IF;
    NEW.valid_from := greatest(NEW.valid_from, clock_timestamp());
    RETURN NEW;
END $$
"""
TENANT_INVOICE = """
SELECT tenant, day, pool, kind, sum(quantity) AS quantity, sum(money) AS money
FROM (SELECT tenant, day, pool, kind, quantity, money FROM task_invoice
      UNION ALL SELECT tenant, day, pool, kind, quantity, money FROM deleted_usage
      UNION ALL SELECT tenant, day, '', 'stored_byte_hours', quantity, money FROM package_usage{more}) used
GROUP BY tenant, day, pool, kind
"""
OF_SERVED = "\n      UNION ALL SELECT tenant, day, pool, kind, quantity, money FROM served_usage"
TENANT_USAGE = """
SELECT n.id AS tenant, n.weight,
       coalesce(l.prompt, 0) + coalesce(d.prompt, 0) AS prompt_tokens,
       coalesce(l.sampled, 0) + coalesce(d.sampled, 0) AS sampled_tokens,
       coalesce(l.trained, 0) + coalesce(d.trained, 0) AS trained_tokens,
       (SELECT count(*) FROM tasks t WHERE t.tenant = n.id AND t.state IN ('submitted', 'running', 'paused')) AS live_tasks,
       coalesce(l.evaluation, 0) + coalesce(d.evaluation, 0) AS evaluation_tokens,
       coalesce(l.env_ms, 0) + coalesce((SELECT sum(u.quantity) FROM deleted_usage u
           WHERE u.tenant = n.id AND u.kind IN ('env_ms', 'void_env_ms')), 0) AS env_ms{more}
FROM tenants n
LEFT JOIN (SELECT tenant, sum(tokens) FILTER (WHERE kind = 'prompt') AS prompt, sum(tokens) FILTER (WHERE kind = 'sampled') AS sampled,
                  sum(tokens) FILTER (WHERE kind = 'trained') AS trained, sum(tokens) FILTER (WHERE kind = 'evaluation') AS evaluation,
                  sum(tokens) FILTER (WHERE kind = 'env_ms') AS env_ms
           FROM ledger GROUP BY tenant) l ON l.tenant = n.id
LEFT JOIN (SELECT tenant, sum(prompt_tokens) AS prompt, sum(sampled_tokens) AS sampled, sum(trained_tokens) AS trained,
                  sum(evaluation_tokens) AS evaluation
           FROM deleted_tasks GROUP BY tenant) d ON d.tenant = n.id
"""
USED = """,
       coalesce((SELECT sum(s.quantity) FROM served_usage s WHERE s.tenant = n.id AND s.kind = 'served_prompt'), 0)
           AS served_prompt_tokens,
       coalesce((SELECT sum(s.quantity) FROM served_usage s WHERE s.tenant = n.id AND s.kind = 'served_sampled'), 0)
           AS served_sampled_tokens"""


def upgrade() -> None:
    op.create_table(
        "served_requests",
        sa.Column("request", sa.Text(), primary_key=True),
        sa.Column("tenant", sa.Text(), sa.ForeignKey("tenants.id", name="fk_served_requests_tenant"), nullable=False),
        sa.Column("key", sa.Text()),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("task", sa.Text()),
        sa.Column("version", sa.Integer()),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in ("attempt", "prompt_tokens", "cached_tokens", "sampled_tokens")),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("(task IS NULL) = (version IS NULL)", name=op.f("ck_served_requests_base_has_no_version")),
        sa.CheckConstraint("cached_tokens BETWEEN 0 AND prompt_tokens AND sampled_tokens >= 0", name=op.f("ck_served_requests_tokens")),
    )
    op.create_index("ix_served_requests_tenant", "served_requests", ["tenant"])
    op.create_index("ix_served_requests_at", "served_requests", ["at"])
    op.create_table(
        "served_usage",
        sa.Column("tenant", sa.Text(), sa.ForeignKey("tenants.id", name="fk_served_usage_tenant"), primary_key=True),
        sa.Column("day", sa.Date(), primary_key=True),
        *(sa.Column(name, sa.Text(), primary_key=True) for name in ("pool", "task", "kind")),
        sa.Column("quantity", sa.BigInteger(), nullable=False),
        sa.Column("money", sa.Numeric(), nullable=False),
        sa.CheckConstraint(f"kind IN ({SERVED})", name=op.f("ck_served_usage_kind")),
    )
    op.drop_constraint(op.f("ck_prices_kind"), "prices", type_="check")
    op.create_check_constraint(op.f("ck_prices_kind"), "prices", KINDS.format(more=f", {SERVED}"))
    op.execute(KEEP_PRICES.format(tables="ledger, served_requests"))
    op.execute(f"CREATE OR REPLACE VIEW tenant_invoice AS {TENANT_INVOICE.format(more=OF_SERVED)}")
    op.execute(f"CREATE OR REPLACE VIEW tenant_usage AS {TENANT_USAGE.format(more=USED)}")


def downgrade() -> None:
    op.execute("DROP VIEW tenant_usage")
    op.execute(f"CREATE VIEW tenant_usage AS {TENANT_USAGE.format(more='')}")
    op.execute(f"CREATE OR REPLACE VIEW tenant_invoice AS {TENANT_INVOICE.format(more='')}")
    op.execute(KEEP_PRICES.format(tables="ledger"))
    op.execute("ALTER TABLE prices DISABLE TRIGGER USER")
    op.execute(f"DELETE FROM prices WHERE kind IN ({SERVED})")
    op.execute("ALTER TABLE prices ENABLE TRIGGER USER")
    op.drop_constraint(op.f("ck_prices_kind"), "prices", type_="check")
    op.create_check_constraint(op.f("ck_prices_kind"), "prices", KINDS.format(more=""))
    op.drop_table("served_usage")
    op.drop_table("served_requests")
