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
REASONS = "'first', 'overdue', 'ratio', 'resident', 'backfill', 'order', 'operator'"
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
