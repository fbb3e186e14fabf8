"""Limits of tenants in one table, with the defaults of all; rates of requests; the time of environments in `tenant_usage`."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

FORMER = {"priority_ceiling": sa.Integer(), "max_tasks": sa.Integer(), "max_sequences": sa.Integer(), "max_tokens": sa.BigInteger()}
LIMITS = (
    *("priority_ceiling", "jobs_per_minute", "asks_per_minute", "max_tasks", "max_unchecked", "max_task_tokens", "max_sequences"),
    *("max_pool_sequences", "max_pool_tokens", "max_tokens", "max_stored_bytes", "max_adapters", "max_connections", "max_message_bytes"),
)
DEFAULTS = """
INSERT INTO limits (tenant, jobs_per_minute, asks_per_minute, max_unchecked, max_connections, max_message_bytes)
VALUES ('_all', 6000, 60000, 1000, 64, 1310720)
"""
LARGEST = {"priority_ceiling": 100, "max_tasks": 2**31 - 1, "max_sequences": 2**31 - 1, "max_tokens": 2**63 - 2}

TASK_STATUS = """
SELECT t.id AS task, t.tenant, t.name, t.pool, t.state, t.reason, t.version, t.steps,
       last.reward AS last_reward,
       live.open_groups, live.ready_groups, live.batched_groups, t.voided AS void_groups,
       spent.prompt_tokens, spent.sampled_tokens, spent.trained_tokens,
       t.submitted_at, t.accepted_at, t.ended_at,
       latest.failed_groups, latest.failed_groups::float8 / nullif(latest.ended_groups, 0) AS failed_share,
       (SELECT count(*) FROM dead_letters d WHERE d.task = t.id) AS dead_letters,
       CASE WHEN t.over_budget THEN 'budget'
            WHEN t.state = 'paused' THEN 'paused'
            WHEN t.state = 'submitted' THEN 'check'
            WHEN live.batched_groups > 0 THEN 'trainer' END AS waits_for
FROM tasks t
LEFT JOIN LATERAL (SELECT s.reward FROM steps s WHERE s.task = t.id AND s.state = 'trained' ORDER BY s.version DESC LIMIT 1) last ON true
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE g.state = 'open') AS open_groups,
           count(*) FILTER (WHERE g.state = 'ready') AS ready_groups,
           count(*) FILTER (WHERE g.state = 'batched') AS batched_groups
    FROM groups g WHERE g.task = t.id AND g.state IN ('open', 'ready', 'batched')) live ON true
LEFT JOIN LATERAL (
    SELECT coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'prompt'), 0) AS prompt_tokens,
           coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'sampled'), 0) AS sampled_tokens,
           coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'trained'), 0) AS trained_tokens
    FROM ledger l WHERE l.task = t.id) spent ON true
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE g.void_reason IN ('failed', 'deadline')) AS failed_groups,
           count(*) FILTER (WHERE g.void_reason IN ('failed', 'deadline') OR g.state IN ('ready', 'batched', 'trained')) AS ended_groups
    FROM (SELECT state, void_reason FROM groups WHERE task = t.id ORDER BY number DESC LIMIT 100) g) latest ON true
"""
TASK_STATUS_BEFORE = """
SELECT t.id AS task, t.tenant, t.name, t.pool, t.state, t.reason, t.version, t.steps,
       last.reward AS last_reward,
       live.open_groups, live.ready_groups, live.batched_groups, t.voided AS void_groups,
       spent.prompt_tokens, spent.sampled_tokens, spent.trained_tokens,
       t.submitted_at, t.accepted_at, t.ended_at,
       latest.failed_groups, latest.failed_groups::float8 / nullif(latest.ended_groups, 0) AS failed_share,
       (SELECT count(*) FROM dead_letters d WHERE d.task = t.id) AS dead_letters
FROM tasks t
LEFT JOIN LATERAL (SELECT s.reward FROM steps s WHERE s.task = t.id AND s.state = 'trained' ORDER BY s.version DESC LIMIT 1) last ON true
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE g.state = 'open') AS open_groups,
           count(*) FILTER (WHERE g.state = 'ready') AS ready_groups,
           count(*) FILTER (WHERE g.state = 'batched') AS batched_groups
    FROM groups g WHERE g.task = t.id AND g.state IN ('open', 'ready', 'batched')) live ON true
LEFT JOIN LATERAL (
    SELECT coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'prompt'), 0) AS prompt_tokens,
           coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'sampled'), 0) AS sampled_tokens,
           coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'trained'), 0) AS trained_tokens
    FROM ledger l WHERE l.task = t.id) spent ON true
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE g.void_reason IN ('failed', 'deadline')) AS failed_groups,
           count(*) FILTER (WHERE g.void_reason IN ('failed', 'deadline') OR g.state IN ('ready', 'batched', 'trained')) AS ended_groups
    FROM (SELECT state, void_reason FROM groups WHERE task = t.id ORDER BY number DESC LIMIT 100) g) latest ON true
"""
TENANT_USAGE = """
SELECT n.id AS tenant, n.weight,
       coalesce(l.prompt, 0) + coalesce(d.prompt, 0) AS prompt_tokens,
       coalesce(l.sampled, 0) + coalesce(d.sampled, 0) AS sampled_tokens,
       coalesce(l.trained, 0) + coalesce(d.trained, 0) AS trained_tokens,
       (SELECT count(*) FROM tasks t WHERE t.tenant = n.id AND t.state IN ('submitted', 'running', 'paused')) AS live_tasks,
       coalesce(l.evaluation, 0) + coalesce(d.evaluation, 0) AS evaluation_tokens,
       coalesce(l.env_ms, 0) + coalesce((SELECT sum(u.quantity) FROM deleted_usage u
           WHERE u.tenant = n.id AND u.kind IN ('env_ms', 'void_env_ms')), 0) AS env_ms
FROM tenants n
LEFT JOIN (SELECT tenant, sum(tokens) FILTER (WHERE kind = 'prompt') AS prompt, sum(tokens) FILTER (WHERE kind = 'sampled') AS sampled,
                  sum(tokens) FILTER (WHERE kind = 'trained') AS trained, sum(tokens) FILTER (WHERE kind = 'evaluation') AS evaluation,
                  sum(tokens) FILTER (WHERE kind = 'env_ms') AS env_ms
           FROM ledger GROUP BY tenant) l ON l.tenant = n.id
LEFT JOIN (SELECT tenant, sum(prompt_tokens) AS prompt, sum(sampled_tokens) AS sampled, sum(trained_tokens) AS trained,
                  sum(evaluation_tokens) AS evaluation
           FROM deleted_tasks GROUP BY tenant) d ON d.tenant = n.id
"""
TENANT_USAGE_BEFORE = """
SELECT n.id AS tenant, n.weight,
       coalesce(l.prompt, 0) + coalesce(d.prompt, 0) AS prompt_tokens,
       coalesce(l.sampled, 0) + coalesce(d.sampled, 0) AS sampled_tokens,
       coalesce(l.trained, 0) + coalesce(d.trained, 0) AS trained_tokens,
       (SELECT count(*) FROM tasks t WHERE t.tenant = n.id AND t.state IN ('submitted', 'running', 'paused')) AS live_tasks,
       coalesce(l.evaluation, 0) + coalesce(d.evaluation, 0) AS evaluation_tokens
FROM tenants n
LEFT JOIN (SELECT tenant, sum(tokens) FILTER (WHERE kind = 'prompt') AS prompt, sum(tokens) FILTER (WHERE kind = 'sampled') AS sampled,
                  sum(tokens) FILTER (WHERE kind = 'trained') AS trained, sum(tokens) FILTER (WHERE kind = 'evaluation') AS evaluation
           FROM ledger GROUP BY tenant) l ON l.tenant = n.id
LEFT JOIN (SELECT tenant, sum(prompt_tokens) AS prompt, sum(sampled_tokens) AS sampled, sum(trained_tokens) AS trained,
                  sum(evaluation_tokens) AS evaluation
           FROM deleted_tasks GROUP BY tenant) d ON d.tenant = n.id
"""


def upgrade() -> None:
    op.create_table(
        "limits",
        sa.Column("tenant", sa.Text(), primary_key=True),
        *(sa.Column(name, sa.BigInteger(), nullable=True) for name in LIMITS),
    )
    op.execute(DEFAULTS)
    names = ", ".join(FORMER)
    op.execute(f"INSERT INTO limits (tenant, {names}) SELECT id, {names} FROM tenants WHERE coalesce({names}) IS NOT NULL")
    for name in FORMER:
        op.drop_column("tenants", name)
    op.create_table(
        "rates",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("kind", sa.Text(), primary_key=True),
        sa.Column("used", sa.Double(), nullable=False),
        sa.Column("granted", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("kind IN ('jobs', 'asks')", name="ck_rates_kind"),
        prefixes=["UNLOGGED"],
    )
    for name in ("trajectories", "evaluation_members"):
        op.add_column(name, sa.Column("env_ms", sa.Integer(), nullable=False, server_default=sa.text("0")))
    op.execute(f"CREATE OR REPLACE VIEW task_status AS {TASK_STATUS}")
    op.execute(f"CREATE OR REPLACE VIEW tenant_usage AS {TENANT_USAGE}")


def downgrade() -> None:
    for name, query in (("task_status", TASK_STATUS_BEFORE), ("tenant_usage", TENANT_USAGE_BEFORE)):
        op.execute(f"DROP VIEW {name}")
        op.execute(f"CREATE VIEW {name} AS {query}")
    for name in ("trajectories", "evaluation_members"):
        op.drop_column(name, "env_ms")
    for name, kind in FORMER.items():
        op.add_column("tenants", sa.Column(name, kind, nullable=True))
        within = f"nullif(least(l.{name}, {LARGEST[name] + 1}), {LARGEST[name] + 1})"
        op.execute(f"UPDATE tenants SET {name} = {within} FROM limits l WHERE l.tenant = tenants.id")
    op.drop_table("rates")
    op.drop_table("limits")
