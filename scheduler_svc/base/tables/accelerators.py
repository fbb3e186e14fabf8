"""Tables of shared accelerators: executors, their slices and who pays for them, measured moves, and the clocks of pools.

Times of slices are NATS's, in whole milliseconds, so that their sums are exact. None of these rows refers to a task: slices outlive tasks.
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
    sa.Column("spec", JSONB, nullable=False),  # as the pools file describes it
    sa.Column("epoch", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # of the newest order
    now_by_default("seen_at"),  # the latest start of a leader that found it in the pools file
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
    sa.Column("replica", sa.Text, nullable=False, server_default=sa.text("''")),  # the process that its latest answer is from
    sa.Column("device_bytes", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("host_bytes", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("epoch", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # of its latest answer
    moment("answered_at"),  # by its own account; answers before it change nothing
    sa.Column("fault", sa.Text),  # why it could not wake the last time; absent once it has
    sa.Column("faults", sa.Integer, nullable=False, server_default=sa.text("0")),  # since it last woke
    moment("retry_at"),  # before which it is given no slice
    sa.Column("needs_room", sa.Boolean, nullable=False, server_default=sa.text("false")),  # its next wake parks all others a tier deeper
    sa.Column("held", sa.Text),
    now_by_default("seen_at"),
    sa.Column("measured", sa.Text),  # tier: held to wake, it is parked there once it is awake, and then woken
    moment("ready_since"),  # since when work waits for it to wake, as it reports; absent without work, and while it is awake
    sa.Column("has_queue", sa.Boolean, nullable=False, server_default=sa.text("false")),  # it reads one of its own, as it reports
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
    sa.Column("number", sa.Integer, sa.Identity(), nullable=False, unique=True),  # over all accelerators: `number` of its ledger entries
    sa.Column("executor", sa.Text, nullable=False),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("function", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("tasks", ARRAY(sa.Text), nullable=False),  # whose work it was ordered for; they pay where nothing was served
    sa.Column("expected_s", sa.Double, nullable=False),  # of the switch
    sa.Column("from_tier", sa.Text, nullable=False),
    sa.Column("to_tier", sa.Text),  # where the executor's state went when it was parked
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
    sa.Column("score_ms", sa.BigInteger),  # of busy_ms, those of passes without a gradient; absent until it is booked
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
    # Never two executors with a slice of one accelerator.
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
    sa.Column("task", sa.Text, primary_key=True),  # empty where it served no task and was ordered for none
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id")),  # absent with the task
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
    sa.Column("bytes", sa.BigInteger, nullable=False),  # that it needs on the device while awake
    sa.Column("freed_bytes", sa.BigInteger),  # of private memory; negative where it has more afterwards
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
    sa.Column("parked_ms", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # in all, the present time not counted
    moment("parked_since"),  # absent while one of its samplers is awake
    sa.CheckConstraint("parked_ms >= 0", name="parked_ms"),
)
