"""Tables of shared accelerators: executors, their slices and who pays for them, measured moves, and the clocks of pools.

Times of slices are NATS's, in whole milliseconds, so that their sums are exact. No row references a task: slices outlive tasks.
"""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from common.accelerators import ExecutorState, Function, Tier
from scheduler_svc.base.states import Hold, SliceEnd, SliceReason
from scheduler_svc.base.tables.base import metadata, moment, now_by_default, one_of

accelerators = sa.Table(
    "accelerators",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("spec", JSONB, nullable=False),  # section of the pools file
    sa.Column("epoch", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # epoch of the newest order
    now_by_default("seen_at"),  # latest start of a leader whose pools file has it
    sa.CheckConstraint("epoch >= 0", name="epoch"),
)

executors = sa.Table(
    "executors",
    metadata,
    sa.Column("accelerator", sa.Text, sa.ForeignKey("accelerators.id"), primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("service", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False, server_default=sa.text("'cold'")),
    sa.Column("tier", sa.Text, nullable=False, server_default=sa.text("'off'")),
    sa.Column("replica", sa.Text, nullable=False, server_default=sa.text("''")),  # process that sent its latest answer
    sa.Column("device_bytes", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("host_bytes", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("epoch", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # epoch of its latest answer
    moment("answered_at"),  # executor's time of its latest answer; earlier answers are ignored
    sa.Column("fault", sa.Text),  # why its last wake failed; absent once it has woken
    sa.Column("faults", sa.Integer, nullable=False, server_default=sa.text("0")),  # failed wakes since it last woke
    moment("retry_at"),  # earliest time of its next slice
    sa.Column("needs_room", sa.Boolean, nullable=False, server_default=sa.text("false")),  # its next wake parks all others a tier deeper
    sa.Column("held", sa.Text),
    now_by_default("seen_at"),
    sa.Column("measured", sa.Text),  # tier in which it is parked between two wakes, to measure moves
    moment("ready_since"),  # reported time since which work waits for its wake; absent without work or while awake
    sa.Column("has_queue", sa.Boolean, nullable=False, server_default=sa.text("false")),  # reports that it reads a queue of its own
    sa.CheckConstraint("service IN ('rollout', 'trainer')", name="service"),
    one_of("state", ExecutorState, "state"),
    one_of("tier", Tier, "tier"),
    one_of("held", Hold, "held"),
    one_of("measured", Tier, "measured"),
    sa.CheckConstraint("device_bytes >= 0 AND host_bytes >= 0 AND epoch >= 0 AND faults >= 0", name="numbers"),
    sa.CheckConstraint("(faults > 0) = (fault IS NOT NULL) AND (faults > 0 OR (retry_at IS NULL AND NOT needs_room))", name="fault"),
)

slices = sa.Table(
    "slices",
    metadata,
    sa.Column("accelerator", sa.Text, sa.ForeignKey("accelerators.id"), primary_key=True),
    sa.Column("epoch", sa.BigInteger, primary_key=True),
    sa.Column("number", sa.Integer, sa.Identity(), nullable=False, unique=True),  # `number` of its ledger entries
    sa.Column("executor", sa.Text, nullable=False),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("function", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("tasks", ARRAY(sa.Text), nullable=False),  # whose work it was ordered for; they pay if nothing was served
    sa.Column("expected_s", sa.Double, nullable=False),  # expected seconds of the switch
    sa.Column("from_tier", sa.Text, nullable=False),
    sa.Column("to_tier", sa.Text),  # tier of the executor's state after it parked
    moment("ordered_at", nullable=False),
    moment("awake_at"),
    moment("asked_at"),  # when its executor was ordered to park
    moment("parked_at"),
    moment("ended_at"),
    sa.Column("ended", sa.Text),
    moment("booked_at"),
    sa.Column("switch_ms", sa.BigInteger),
    sa.Column("busy_ms", sa.BigInteger),
    sa.Column("idle_ms", sa.BigInteger),
    sa.Column("score_ms", sa.BigInteger),  # part of busy_ms in passes without a gradient; absent until booked
    one_of("function", Function, "function"),
    one_of("reason", SliceReason, "reason"),
    one_of("from_tier", Tier, "from_tier"),
    one_of("to_tier", Tier, "to_tier"),
    one_of("ended", SliceEnd, "ended"),
    sa.CheckConstraint("epoch > 0 AND expected_s >= 0", name="numbers"),
    sa.CheckConstraint("(ended IS NULL) = (ended_at IS NULL) AND (booked_at IS NULL OR ended IS NOT NULL)", name="ended_once"),
    sa.CheckConstraint("ended_at >= ordered_at AND awake_at BETWEEN ordered_at AND coalesce(ended_at, awake_at)", name="times"),
    sa.CheckConstraint(
        "booked_at IS NULL OR coalesce(switch_ms >= 0 AND busy_ms >= 0 AND idle_ms >= 0 "
        "AND switch_ms + busy_ms + idle_ms = extract(epoch FROM ended_at - ordered_at) * 1000, false)",
        name="whole",
    ),
    sa.CheckConstraint("score_ms IS NULL OR coalesce(score_ms BETWEEN 0 AND busy_ms, false)", name="score_ms"),
    # At most one open slice per accelerator.
    sa.Index("uq_slices_open", "accelerator", unique=True, postgresql_where=sa.text("ended_at IS NULL")),
    sa.Index("ix_slices_unbooked", "accelerator", "executor", postgresql_where=sa.text("booked_at IS NULL")),
    sa.Index("ix_slices_moved", "accelerator", "epoch", postgresql_where=sa.text("from_tier <> 'device' AND awake_at IS NOT NULL")),
    sa.Index(None, "accelerator", "executor", "epoch"),
    sa.Index(None, "accelerator", "executor", "ended_at"),
    sa.Index(None, "pool", "ordered_at"),
)

slice_shares = sa.Table(
    "slice_shares",
    metadata,
    sa.Column("accelerator", sa.Text, primary_key=True),
    sa.Column("epoch", sa.BigInteger, primary_key=True),
    sa.Column("task", sa.Text, primary_key=True),  # empty if it served no task and was ordered for none
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id")),  # absent if the task is empty
    sa.Column("ms", sa.BigInteger, nullable=False),
    sa.ForeignKeyConstraint(["accelerator", "epoch"], ["slices.accelerator", "slices.epoch"], ondelete="CASCADE"),
    sa.CheckConstraint("ms >= 0", name="ms"),
    sa.CheckConstraint("(task = '') = (tenant IS NULL)", name="task"),
    sa.Index(None, "task"),
    sa.Index(None, "tenant"),
)

moves = sa.Table(
    "moves",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("accelerator", sa.Text, nullable=False),
    sa.Column("executor", sa.Text, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("from_tier", sa.Text, nullable=False),
    sa.Column("to_tier", sa.Text, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),  # device bytes while awake
    sa.Column("freed_bytes", sa.BigInteger),  # private memory freed; negative if it grew
    sa.Column("seconds", sa.Double, nullable=False),
    now_by_default("at"),
    sa.ForeignKeyConstraint(["accelerator", "executor"], ["executors.accelerator", "executors.id"]),
    one_of("from_tier", Tier, "from_tier"),
    one_of("to_tier", Tier, "to_tier"),
    sa.CheckConstraint("bytes >= 0 AND seconds >= 0 AND seconds < 'infinity'", name="numbers"),
    sa.Index(None, "accelerator", "executor", "from_tier", "to_tier", "id"),
)

pool_clocks = sa.Table(
    "pool_clocks",
    metadata,
    sa.Column("pool", sa.Text, primary_key=True),
    sa.Column("parked_ms", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # total, without the current parking
    moment("parked_since"),  # absent while one of its samplers is awake
    sa.CheckConstraint("parked_ms >= 0", name="parked_ms"),
)
