"""Shared accelerators: executors, slices, who pays for them, measured moves, and the clocks of pools."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

STATES = "'cold', 'waking', 'awake', 'parking', 'parked', 'faulty'"
TIERS = "'device', 'host', 'disk', 'none', 'off'"
FUNCTIONS = "'generate', 'train', 'score'"
REASONS = "'first', 'overdue', 'ratio', 'resident', 'order', 'operator'"
ENDS = "'switched', 'finished', 'faulty', 'died', 'fenced', 'held', 'removed'"
HELD_EXACTLY = (
    "booked_at IS NULL OR coalesce(switch_ms >= 0 AND busy_ms >= 0 AND idle_ms >= 0 "
    "AND switch_ms + busy_ms + idle_ms = extract(epoch FROM ended_at - ordered_at) * 1000, false)"
)
LEDGER = "'prompt', 'sampled', 'trained', 'evaluation', 'env_ms', 'stored_byte_hours'"
SERVED = "'served_prompt', 'served_sampled'"
OTHER_UNITS = "'env_ms', 'stored_byte_hours'"
NEW = ", 'accelerator'"
PARKED = {"groups": ["parked_ms"], "steps": ["first_parked_ms", "parked_ms"]}
"""Columns with milliseconds for which a task's pool was parked until that moment."""
COUNT = """
CREATE OR REPLACE FUNCTION count_booked() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tasks SET booked_tokens = booked_tokens + total.booked, sampled_tokens = sampled_tokens + total.sampled,
                     paid_tokens = paid_tokens + total.paid
    FROM (SELECT task, sum(tokens) AS booked, coalesce(sum(tokens) FILTER (WHERE kind = 'sampled'), 0) AS sampled,
                 coalesce(sum(tokens) FILTER (WHERE paid_by = 'tenant'), 0) AS paid
          FROM booked WHERE kind NOT IN ({other_units}) GROUP BY task) total
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
FORGIVE = """
CREATE OR REPLACE FUNCTION count_forgiven() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tasks SET paid_tokens = paid_tokens - total.tokens, paid_money = paid_money - total.money
    FROM (SELECT n.task, coalesce(sum(n.tokens) FILTER (WHERE n.kind NOT IN ({other_units})), 0) AS tokens,
                 coalesce(sum(n.tokens * unit_price(n.kind, t.pool, n.at)), 0) AS money
          FROM changed n JOIN former o ON o.id = n.id JOIN tasks t ON t.id = n.task
          WHERE o.paid_by = 'tenant' AND n.paid_by = 'nobody' GROUP BY n.task) total
    WHERE tasks.id = total.task;
    RETURN NULL;
END $$
"""

TASK_TIMELINE = """
SELECT s.task, t.tenant, s.version, s.state, s.reward, s.staleness_max,
       s.first_admitted_at, s.first_scored_at, s.last_scored_at, s.batched_at, s.started_at, s.finished_at, s.trained_at,
       extract(epoch FROM s.last_scored_at - s.first_admitted_at) AS rollout_s,
       extract(epoch FROM s.batched_at - s.last_scored_at) AS wait_for_batch_s,
       extract(epoch FROM s.started_at - s.batched_at) AS wait_for_trainer_s,
       extract(epoch FROM s.finished_at - s.started_at) AS train_s,
       extract(epoch FROM s.trained_at - s.finished_at) AS publish_s{more}
FROM steps s JOIN tasks t ON t.id = s.task
"""
TENANT_USAGE = """
SELECT n.id AS tenant, n.weight,
       coalesce(l.prompt, 0) + coalesce(d.prompt, 0) AS prompt_tokens,
       coalesce(l.sampled, 0) + coalesce(d.sampled, 0) AS sampled_tokens,
       coalesce(l.trained, 0) + coalesce(d.trained, 0) AS trained_tokens,
       (SELECT count(*) FROM tasks t WHERE t.tenant = n.id AND t.state IN ('submitted', 'running', 'paused')) AS live_tasks,
       coalesce(l.evaluation, 0) + coalesce(d.evaluation, 0) AS evaluation_tokens,
       coalesce(l.env_ms, 0) + coalesce((SELECT sum(u.quantity) FROM deleted_usage u
           WHERE u.tenant = n.id AND u.kind IN ('env_ms', 'void_env_ms')), 0) AS env_ms,
       coalesce((SELECT sum(s.quantity) FROM served_usage s WHERE s.tenant = n.id AND s.kind = 'served_prompt'), 0)
           AS served_prompt_tokens,
       coalesce((SELECT sum(s.quantity) FROM served_usage s WHERE s.tenant = n.id AND s.kind = 'served_sampled'), 0)
           AS served_sampled_tokens{more}
FROM tenants n
LEFT JOIN (SELECT tenant, sum(tokens) FILTER (WHERE kind = 'prompt') AS prompt, sum(tokens) FILTER (WHERE kind = 'sampled') AS sampled,
                  sum(tokens) FILTER (WHERE kind = 'trained') AS trained, sum(tokens) FILTER (WHERE kind = 'evaluation') AS evaluation,
                  sum(tokens) FILTER (WHERE kind = 'env_ms') AS env_ms{sums}
           FROM ledger GROUP BY tenant) l ON l.tenant = n.id
LEFT JOIN (SELECT tenant, sum(prompt_tokens) AS prompt, sum(sampled_tokens) AS sampled, sum(trained_tokens) AS trained,
                  sum(evaluation_tokens) AS evaluation
           FROM deleted_tasks GROUP BY tenant) d ON d.tenant = n.id
"""
PARKED_S = ",\n       (s.parked_ms - s.first_parked_ms) / 1000.0 AS parked_s"
SUMS = ", sum(tokens) FILTER (WHERE kind = 'accelerator') AS accelerator"
USED = """,
       (coalesce(l.accelerator, 0) + coalesce((SELECT sum(u.quantity) FROM deleted_usage u
           WHERE u.tenant = n.id AND u.kind = 'accelerator'), 0)) / 1000.0 AS accelerator_s"""
NEW_VIEWS = {
    "accelerator_slices": """
SELECT s.accelerator, s.epoch, s.executor, s.pool, s.function, s.reason, cardinality(s.tasks) AS tasks, s.from_tier, s.to_tier,
       s.ordered_at, s.awake_at, s.asked_at, s.ended_at, s.parked_at, s.ended, s.expected_s,
       s.switch_ms / 1000.0 AS switch_s, s.busy_ms / 1000.0 AS busy_s, s.idle_ms / 1000.0 AS idle_s,
       extract(epoch FROM s.ended_at - s.ordered_at) AS held_s
FROM slices s
""",
    "accelerator_use": """
SELECT h.hour, s.accelerator, s.pool, s.function, count(*) AS slices,
       sum(extract(epoch FROM greatest(least(t.woke, h.hour + interval '1 hour') - greatest(s.ordered_at, h.hour), '0'))) AS switch_s,
       sum(w.awake_s) AS awake_s, sum(w.awake_s * s.busy_ms / nullif(s.busy_ms + s.idle_ms, 0)) AS busy_s,
       sum(w.awake_s * s.idle_ms / nullif(s.busy_ms + s.idle_ms, 0)) AS idle_s
FROM slices s
CROSS JOIN LATERAL (SELECT coalesce(s.ended_at, greatest(now(), s.ordered_at)) AS until) u
CROSS JOIN LATERAL (SELECT coalesce(s.awake_at, u.until) AS woke) t
CROSS JOIN LATERAL generate_series(date_trunc('hour', s.ordered_at), u.until, interval '1 hour') AS h (hour)
CROSS JOIN LATERAL (
    SELECT extract(epoch FROM greatest(least(u.until, h.hour + interval '1 hour') - greatest(t.woke, h.hour), '0')) AS awake_s) w
GROUP BY h.hour, s.accelerator, s.pool, s.function
""",
    "move_costs": """
SELECT accelerator, executor, from_tier, to_tier, count(*) AS n,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) AS p50_s, percentile_cont(0.9) WITHIN GROUP (ORDER BY seconds) AS p90_s,
       sum(bytes) / nullif(sum(seconds), 0) AS bytes_per_s, max(at) AS latest_at
FROM (SELECT *, row_number() OVER (PARTITION BY accelerator, executor, from_tier, to_tier ORDER BY id DESC) AS place FROM moves) newest
WHERE place <= 100
GROUP BY accelerator, executor, from_tier, to_tier
""",
    "pool_status": """
SELECT e.pool, e.accelerator, e.id AS executor, e.service, e.state, e.tier, e.held, open.epoch IS NOT NULL AS is_holder,
       coalesce(open.awake_at, open.ordered_at, e.answered_at) AS since,
       CASE WHEN e.state <> 'awake' THEN
           CASE e.service WHEN 'trainer' THEN work.batched_at WHEN 'rollout' THEN
               CASE WHEN work.admitted_at IS NOT NULL THEN greatest(work.admitted_at, c.parked_since) END END
       END AS waiting_since,
       costs.p50_s AS wake_s, recent.switch_share, e.device_bytes, e.host_bytes, e.fault, e.retry_at,
       (coalesce(c.parked_ms, 0) + coalesce(greatest(0, extract(epoch FROM now() - c.parked_since) * 1000), 0)) / 1000.0 AS parked_s
FROM executors e
LEFT JOIN pool_clocks c ON c.pool = e.pool
LEFT JOIN slices open ON open.accelerator = e.accelerator AND open.executor = e.id AND open.ended_at IS NULL
LEFT JOIN move_costs costs
    ON costs.accelerator = e.accelerator AND costs.executor = e.id AND costs.from_tier = e.tier AND costs.to_tier = 'device'
LEFT JOIN LATERAL (
    SELECT sum(s.switch_ms) / nullif(sum(s.switch_ms + s.busy_ms + s.idle_ms), 0) AS switch_share
    FROM slices s WHERE s.accelerator = e.accelerator AND s.executor = e.id AND s.ended_at > now() - interval '1 hour') recent ON true
LEFT JOIN LATERAL (
    SELECT min(g.admitted_at) FILTER (WHERE g.state = 'open') AS admitted_at,
           (SELECT min(b.batched_at) FROM steps b JOIN tasks t ON t.id = b.task WHERE t.pool = e.pool AND b.state = 'batched') AS batched_at
    FROM groups g JOIN tasks t ON t.id = g.task WHERE t.pool = e.pool AND g.state IN ('open', 'ready', 'batched')) work ON true
""",
}


def _moment(name: str, default: str | None = None, *, nullable: bool = True) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), server_default=sa.text(default) if default else None, nullable=nullable)


def _number(name: str, *, nullable: bool = False, kind: type[sa.Integer] = sa.BigInteger) -> sa.Column[int]:
    return sa.Column(name, kind(), server_default=None if nullable else sa.text("0"), nullable=nullable)


def _text(name: str, default: str | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), server_default=sa.text(f"'{default}'") if default is not None else None, nullable=False)


def _check(table: str, name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=op.f(f"ck_{table}_{name}"))


def upgrade() -> None:
    _executors()
    _slices()
    _moves_and_clocks()
    for table, names in PARKED.items():
        for name in names:
            op.add_column(table, _number(name))
    _ledger(NEW)
    op.execute(f"CREATE OR REPLACE VIEW task_timeline AS {TASK_TIMELINE.format(more=PARKED_S)}")
    op.execute(f"CREATE OR REPLACE VIEW tenant_usage AS {TENANT_USAGE.format(more=USED, sums=SUMS)}")
    for name, query in NEW_VIEWS.items():
        op.execute(f"CREATE VIEW {name} AS {query}")


def _executors() -> None:
    op.create_table(
        "accelerators",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("spec", JSONB(), nullable=False),
        _number("epoch"),
        _moment("seen_at", "now()", nullable=False),
        _check("accelerators", "epoch", "epoch >= 0"),
    )
    op.create_table(
        "executors",
        sa.Column("accelerator", sa.Text(), sa.ForeignKey("accelerators.id", name="fk_executors_accelerator"), primary_key=True),
        sa.Column("id", sa.Text(), primary_key=True),
        _text("pool"),
        _text("service"),
        _text("state", "cold"),
        _text("tier", "off"),
        _text("replica", ""),
        *(_number(name) for name in ("device_bytes", "host_bytes", "epoch")),
        _moment("answered_at"),
        sa.Column("fault", sa.Text()),
        _number("faults", kind=sa.Integer),
        _moment("retry_at"),
        sa.Column("needs_room", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("held", sa.Text()),
        _moment("seen_at", "now()", nullable=False),
        _check("executors", "service", "service IN ('rollout', 'trainer')"),
        _check("executors", "state", f"state IN ({STATES})"),
        _check("executors", "tier", f"tier IN ({TIERS})"),
        _check("executors", "held", "held IN ('park', 'drain', 'wake')"),
        _check("executors", "numbers", "device_bytes >= 0 AND host_bytes >= 0 AND epoch >= 0 AND faults >= 0"),
        _check("executors", "fault", "(faults > 0) = (fault IS NOT NULL) AND (faults > 0 OR (retry_at IS NULL AND NOT needs_room))"),
    )


def _slices() -> None:
    op.create_table(
        "slices",
        sa.Column("accelerator", sa.Text(), sa.ForeignKey("accelerators.id", name="fk_slices_accelerator"), primary_key=True),
        sa.Column("epoch", sa.BigInteger(), primary_key=True),
        sa.Column("number", sa.Integer(), sa.Identity(), nullable=False),
        *(_text(name) for name in ("executor", "pool", "function", "reason")),
        sa.Column("tasks", ARRAY(sa.Text()), nullable=False),
        sa.Column("expected_s", sa.Double(), nullable=False),
        _text("from_tier"),
        sa.Column("to_tier", sa.Text()),
        _moment("ordered_at", nullable=False),
        *(_moment(name) for name in ("awake_at", "asked_at", "parked_at", "ended_at")),
        sa.Column("ended", sa.Text()),
        _moment("booked_at"),
        *(_number(name, nullable=True) for name in ("switch_ms", "busy_ms", "idle_ms")),
        _check("slices", "function", f"function IN ({FUNCTIONS})"),
        _check("slices", "reason", f"reason IN ({REASONS})"),
        _check("slices", "from_tier", f"from_tier IN ({TIERS})"),
        _check("slices", "to_tier", f"to_tier IN ({TIERS})"),
        _check("slices", "ended", f"ended IN ({ENDS})"),
        _check("slices", "numbers", "epoch > 0 AND expected_s >= 0"),
        _check("slices", "ended_once", "(ended IS NULL) = (ended_at IS NULL) AND (booked_at IS NULL OR ended IS NOT NULL)"),
        _check("slices", "times", "ended_at >= ordered_at AND awake_at BETWEEN ordered_at AND coalesce(ended_at, awake_at)"),
        _check("slices", "whole", HELD_EXACTLY),
        sa.UniqueConstraint("number", name="uq_slices_number"),
    )
    op.create_index("uq_slices_open", "slices", ["accelerator"], unique=True, postgresql_where=sa.text("ended_at IS NULL"))
    op.create_index("ix_slices_unbooked", "slices", ["accelerator", "executor"], postgresql_where=sa.text("booked_at IS NULL"))
    op.create_index("ix_slices_accelerator_executor_epoch", "slices", ["accelerator", "executor", "epoch"])
    op.create_index("ix_slices_pool_ordered_at", "slices", ["pool", "ordered_at"])
    op.create_table(
        "slice_shares",
        *(sa.Column(name, kind, primary_key=True) for name, kind in (("accelerator", sa.Text()), ("epoch", sa.BigInteger()))),
        sa.Column("task", sa.Text(), primary_key=True),
        sa.Column("tenant", sa.Text(), sa.ForeignKey("tenants.id", name="fk_slice_shares_tenant")),
        sa.Column("ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["accelerator", "epoch"], ["slices.accelerator", "slices.epoch"], name="fk_slice_shares_accelerator_epoch", ondelete="CASCADE"
        ),
        _check("slice_shares", "ms", "ms >= 0"),
        _check("slice_shares", "task", "(task = '') = (tenant IS NULL)"),
    )
    op.create_index("ix_slice_shares_task", "slice_shares", ["task"])
    op.create_index("ix_slice_shares_tenant", "slice_shares", ["tenant"])


def _moves_and_clocks() -> None:
    op.create_table(
        "moves",
        sa.Column("id", sa.BigInteger(), sa.Identity(), primary_key=True),
        *(_text(name) for name in ("accelerator", "executor")),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        *(_text(name) for name in ("from_tier", "to_tier")),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("freed_bytes", sa.BigInteger()),
        sa.Column("seconds", sa.Double(), nullable=False),
        _moment("at", "now()", nullable=False),
        sa.ForeignKeyConstraint(
            ["accelerator", "executor"], ["executors.accelerator", "executors.id"], name="fk_moves_accelerator_executor"
        ),
        _check("moves", "from_tier", f"from_tier IN ({TIERS})"),
        _check("moves", "to_tier", f"to_tier IN ({TIERS})"),
        _check("moves", "numbers", "bytes >= 0 AND seconds >= 0 AND seconds < 'infinity'"),
    )
    op.create_index(
        "ix_moves_accelerator_executor_from_tier_to_tier_id", "moves", ["accelerator", "executor", "from_tier", "to_tier", "id"]
    )
    op.create_table(
        "pool_clocks",
        sa.Column("pool", sa.Text(), primary_key=True),
        _number("parked_ms"),
        _moment("parked_since"),
        _check("pool_clocks", "parked_ms", "parked_ms >= 0"),
    )


def _ledger(more: str) -> None:
    """Kinds of the ledger and of prices. `more`: after the former ones."""
    for table, kinds in (("ledger", f"{LEDGER}{more}"), ("prices", f"{LEDGER}{more}, {SERVED}")):
        op.drop_constraint(op.f(f"ck_{table}_kind"), table, type_="check")
        op.create_check_constraint(op.f(f"ck_{table}_kind"), table, f"kind IN ({kinds})")
    for function in (COUNT, FORGIVE):
        op.execute(function.format(other_units=OTHER_UNITS + more))


def downgrade() -> None:
    for name in reversed(NEW_VIEWS):
        op.execute(f"DROP VIEW {name}")
    op.execute("DROP VIEW task_timeline")
    op.execute(f"CREATE VIEW task_timeline AS {TASK_TIMELINE.format(more='')}")
    op.execute("DROP VIEW tenant_usage")
    op.execute(f"CREATE VIEW tenant_usage AS {TENANT_USAGE.format(more='', sums='')}")
    op.execute("DELETE FROM ledger WHERE kind = 'accelerator'")
    op.execute("ALTER TABLE prices DISABLE TRIGGER USER")
    op.execute("DELETE FROM prices WHERE kind = 'accelerator'")
    op.execute("ALTER TABLE prices ENABLE TRIGGER USER")
    _ledger("")
    for table, names in PARKED.items():
        for name in names:
            op.drop_column(table, name)
    for table in ("pool_clocks", "moves", "slice_shares", "slices", "executors", "accelerators"):
        op.drop_table(table)
