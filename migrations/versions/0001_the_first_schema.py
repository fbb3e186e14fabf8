"""The first schema."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


VIEWS = {
    "task_status": """
SELECT t.id AS task, t.tenant, t.name, t.pool, t.state, t.reason, t.version, t.steps,
       last.reward AS last_reward,
       live.open_groups, live.ready_groups, live.batched_groups, t.voided AS void_groups,
       spent.prompt_tokens, spent.sampled_tokens, spent.trained_tokens,
       t.submitted_at, t.accepted_at, t.ended_at
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
""",
    "task_staleness": """
SELECT t.id AS task, t.tenant, t.version, t.max_staleness,
       trained.steps AS trained_steps, trained.mean AS trained_mean, trained.max AS trained_max,
       coalesce(t.version - live.oldest, 0) AS live_max
FROM tasks t
LEFT JOIN LATERAL (
    SELECT count(*) AS steps, avg(s.staleness_mean) AS mean, max(s.staleness_max) AS max
    FROM steps s WHERE s.task = t.id AND s.state = 'trained') trained ON true
LEFT JOIN LATERAL (
    SELECT min(g.version) AS oldest FROM groups g WHERE g.task = t.id AND g.state IN ('open', 'ready')) live ON true
""",
    "task_timeline": """
SELECT s.task, t.tenant, s.version, s.state, s.reward, s.staleness_max,
       s.first_admitted_at, s.first_scored_at, s.last_scored_at, s.batched_at, s.started_at, s.finished_at, s.trained_at,
       extract(epoch FROM s.last_scored_at - s.first_admitted_at) AS rollout_s,
       extract(epoch FROM s.batched_at - s.last_scored_at) AS wait_for_batch_s,
       extract(epoch FROM s.started_at - s.batched_at) AS wait_for_trainer_s,
       extract(epoch FROM s.finished_at - s.started_at) AS train_s,
       extract(epoch FROM s.trained_at - s.finished_at) AS publish_s
FROM steps s JOIN tasks t ON t.id = s.task
""",
    "tenant_usage": """
SELECT n.id AS tenant, n.weight,
       coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'prompt'), 0) AS prompt_tokens,
       coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'sampled'), 0) AS sampled_tokens,
       coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'trained'), 0) AS trained_tokens,
       (SELECT count(*) FROM tasks t WHERE t.tenant = n.id AND t.state IN ('submitted', 'running', 'paused')) AS live_tasks
FROM tenants n LEFT JOIN ledger l ON l.tenant = n.id
GROUP BY n.id, n.weight
""",
    "stage_health": """
SELECT r.service AS stage, r.id AS replica, r.pool, r.seen_at > now() - interval '15 seconds' AS alive, r.seen_at,
       r.report -> 'busy' AS busy, (r.report ->> 'sequences')::int AS sequences, (r.report ->> 'kv_tokens')::int AS kv_tokens
FROM replicas r
""",
}


def upgrade() -> None:
    op.create_table(
        "dead_letters",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=True),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dead_letters")),
        sa.UniqueConstraint("sequence", name=op.f("uq_dead_letters_sequence")),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("data", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_task_id"), "events", ["task", "id"], unique=False)
    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("headers", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
    )
    op.create_table(
        "replicas",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("service", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=True),
        sa.Column("report", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_replicas")),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("weight", sa.Double(), server_default=sa.text("1"), nullable=False),
        sa.Column("virtual_time", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("weight > 0", name=op.f("ck_tenants_weight_positive")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("family", sa.Text(), nullable=True),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("group_size", sa.Integer(), nullable=False),
        sa.Column("groups_per_step", sa.Integer(), nullable=False),
        sa.Column("max_staleness", sa.Integer(), nullable=False),
        sa.Column("trajectory_tokens", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("admitted", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("voided", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("failures_in_a_row", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("virtual_time", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("adapter", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("checkpoint", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("submitted_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("accepted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "state IN ('submitted', 'running', 'paused', 'finished', 'cancelled', 'failed', 'rejected')", name=op.f("ck_tasks_state")
        ),
        sa.CheckConstraint("state NOT IN ('failed', 'rejected') OR reason <> ''", name=op.f("ck_tasks_failure_has_reason")),
        sa.CheckConstraint(
            "admitted - voided <= least((version + max_staleness + 1), steps) * groups_per_step", name=op.f("ck_tasks_pace")
        ),
        sa.CheckConstraint("version BETWEEN 0 AND steps", name=op.f("ck_tasks_version_within_steps")),
        sa.CheckConstraint("voided BETWEEN 0 AND admitted", name=op.f("ck_tasks_voided_within_admitted")),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], name=op.f("fk_tasks_tenant")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
    )
    op.create_index(op.f("ix_tasks_state"), "tasks", ["state"], unique=False)
    op.create_index(op.f("ix_tasks_tenant"), "tasks", ["tenant"], unique=False)
    op.create_table(
        "groups",
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("void_reason", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("row", sa.BigInteger(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("charged_tokens", sa.Double(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("admitted_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ready_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(state = 'void') = (void_reason IS NOT NULL)", name=op.f("ck_groups_void_has_reason")),
        sa.CheckConstraint("state IN ('open', 'ready', 'batched', 'trained', 'void')", name=op.f("ck_groups_state")),
        sa.CheckConstraint("state NOT IN ('batched', 'trained') OR step IS NOT NULL", name=op.f("ck_groups_trained_in_a_step")),
        sa.CheckConstraint("void_reason IN ('stale', 'cancelled', 'failed', 'deadline')", name=op.f("ck_groups_void_reason")),
        sa.ForeignKeyConstraint(["task"], ["tasks.id"], name=op.f("fk_groups_task"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("task", "number", name=op.f("pk_groups")),
    )
    op.create_index("ix_groups_deadline", "groups", ["deadline_at"], unique=False, postgresql_where=sa.text("state = 'open'"))
    op.create_index(
        "ix_groups_live", "groups", ["task", "state"], unique=False, postgresql_where=sa.text("state IN ('open', 'ready', 'batched')")
    )
    op.create_table(
        "ledger",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("kind IN ('prompt', 'sampled', 'trained')", name=op.f("ck_ledger_kind")),
        sa.ForeignKeyConstraint(["task"], ["tasks.id"], name=op.f("fk_ledger_task"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], name=op.f("fk_ledger_tenant")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger")),
        sa.UniqueConstraint("task", "kind", "number", name=op.f("uq_ledger_task_kind_number")),
    )
    op.create_table(
        "steps",
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reward", sa.Double(), nullable=False),
        sa.Column("staleness_mean", sa.Double(), nullable=False),
        sa.Column("staleness_max", sa.Integer(), nullable=False),
        sa.Column("sampled_tokens", sa.BigInteger(), nullable=False),
        sa.Column("metrics", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("adapter", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("checkpoint", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("first_admitted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("first_scored_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_scored_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("batched_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("trained_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(state = 'trained') = (adapter IS NOT NULL AND checkpoint IS NOT NULL)", name=op.f("ck_steps_trained_has_adapter")
        ),
        sa.CheckConstraint("state IN ('batched', 'trained', 'void')", name=op.f("ck_steps_state")),
        sa.ForeignKeyConstraint(["task"], ["tasks.id"], name=op.f("fk_steps_task"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("task", "version", name=op.f("pk_steps")),
    )
    op.create_table(
        "trajectories",
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("group", sa.Integer(), nullable=False),
        sa.Column("member", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("void_reason", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("sequence", sa.BigInteger(), nullable=True),
        sa.Column("prompt_tokens", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("sampled_tokens", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("turns", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("truncated", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("scored_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(state = 'void') = (void_reason IS NOT NULL)", name=op.f("ck_trajectories_void_has_reason")),
        sa.CheckConstraint("state IN ('open', 'scored', 'trained', 'void')", name=op.f("ck_trajectories_state")),
        sa.CheckConstraint(
            "state NOT IN ('scored', 'trained') OR (reward IS NOT NULL AND sequence IS NOT NULL)",
            name=op.f("ck_trajectories_scored_has_reward"),
        ),
        sa.CheckConstraint("void_reason IN ('stale', 'cancelled', 'failed', 'deadline')", name=op.f("ck_trajectories_void_reason")),
        sa.ForeignKeyConstraint(
            ["task", "group"], ["groups.task", "groups.number"], name=op.f("fk_trajectories_task_group"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("task", "group", "member", name=op.f("pk_trajectories")),
    )
    op.create_index("ix_trajectories_open", "trajectories", ["task"], unique=False, postgresql_where=sa.text("state = 'open'"))
    for name, query in VIEWS.items():
        op.execute(f"CREATE VIEW {name} AS {query}")


def downgrade() -> None:
    for name in VIEWS:
        op.execute(f"DROP VIEW {name}")
    for table in (
        "replicas",
        "dead_letters",
        "outbox",
        "events",
        "ledger",
        "steps",
        "trajectories",
        "groups",
        "tasks",
        "tenants",
    ):
        op.drop_table(table)
