"""Tables of work: tenants, tasks, their groups, steps and evaluations, and replicas."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from common.messages.prompts import FIRST_EVALUATION_GROUP
from scheduler_svc.base.states import EvaluationState, GroupState, StepState, TaskState, TrajectoryState, VoidReason
from scheduler_svc.base.tables.base import metadata, moment, now_by_default, one_of

tenants = sa.Table(
    "tenants",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("weight", sa.Double, nullable=False, server_default=sa.text("1")),
    sa.Column("virtual_time", sa.Double, nullable=False, server_default=sa.text("0")),  # consumed tokens / weight
    now_by_default("created_at"),
    sa.Column("account", sa.Text),  # public key of its NATS account; absent if it has no keys
    moment("suspended_at"),
    # Retention in days after a task's end, 0 forever:
    sa.Column("adapters_days", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("checkpoints_days", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("batches_days", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("events_days", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("tasks_days", sa.Integer, nullable=False, server_default=sa.text("0")),
    # Absent unless the tenant is deleted; its row stays for its consumption:
    sa.Column("deleted_by", sa.BigInteger),  # stream sequence of the requesting job
    sa.Column("deletion", JSONB),  # request id, and the receipt
    moment("deleted_at"),
    sa.CheckConstraint("weight > 0", name="weight_positive"),
)

tasks = sa.Table(
    "tasks",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("family", sa.Text),  # of the environment; absent until a live env replica serves it
    sa.Column("spec", JSONB, nullable=False),
    sa.Column("submission", sa.Text, nullable=False),  # digest of the spec as submitted, without defaults
    sa.Column("by_operator", sa.Boolean, nullable=False, server_default=sa.text("true")),  # submitted by an operator, not by a tenant's key
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False, server_default=sa.text("''")),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("steps", sa.Integer, nullable=False),
    sa.Column("group_size", sa.Integer, nullable=False),
    sa.Column("groups_per_step", sa.Integer, nullable=False),
    sa.Column("max_staleness", sa.Integer, nullable=False),
    sa.Column("trajectory_tokens", sa.Integer, nullable=False),  # maximum per trajectory
    sa.Column("version", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("admitted", sa.Integer, nullable=False, server_default=sa.text("0")),  # groups ever admitted; number of the next group
    sa.Column("voided", sa.Integer, nullable=False, server_default=sa.text("0")),  # admitted groups that were voided
    sa.Column("failures_in_a_row", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("virtual_time", sa.Double, nullable=False, server_default=sa.text("0")),  # consumed tokens
    sa.Column("group_tokens", sa.Double),  # expected tokens of a group; absent before the first ready group
    sa.Column("booked_tokens", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # sum of the ledger's tokens, kept by a trigger
    sa.Column("sampled_tokens", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # sampled tokens among them
    sa.Column(
        "paid_tokens", sa.BigInteger, nullable=False, server_default=sa.text("0")
    ),  # tokens that the tenant pays for, kept by triggers
    sa.Column("paid_money", sa.Numeric, nullable=False, server_default=sa.text("0")),  # money that the tenant pays, kept by triggers
    sa.Column("over_budget", sa.Boolean, nullable=False, server_default=sa.text("false")),  # paused until its tenant's budget allows more
    sa.Column("warnings", JSONB, nullable=False, server_default=sa.text("'{}'")),  # active warnings: sentences by name
    sa.Column("start", JSONB),  # adapter of version 0 after a warm start
    sa.Column("package", JSONB),  # blob of its environment's package, if the tenant's own
    sa.Column("expiring", JSONB, nullable=False, server_default=sa.text("'{}'")),  # kinds of data, with the Unix time of the announcement
    sa.Column("expired", JSONB, nullable=False, server_default=sa.text("'[]'")),  # kinds of data that were deleted
    sa.Column("adapter", JSONB),
    sa.Column("checkpoint", JSONB),
    now_by_default("submitted_at"),
    moment("accepted_at"),
    moment("ended_at"),
    now_by_default("updated_at"),
    sa.Column("homes", JSONB),  # by service, in a pool with several named replicas; absent before the first
    one_of("state", TaskState, "state"),
    sa.CheckConstraint("version BETWEEN 0 AND steps", name="version_within_steps"),
    sa.CheckConstraint("voided BETWEEN 0 AND admitted", name="voided_within_admitted"),
    sa.CheckConstraint("admitted - voided <= least((version + max_staleness + 1), steps) * groups_per_step", name="pace"),
    sa.CheckConstraint("state NOT IN ('failed', 'rejected') OR reason <> ''", name="failure_has_reason"),
    sa.CheckConstraint("NOT over_budget OR state <> 'running'", name="over_budget"),
    sa.Index(None, "state"),
    sa.Index(None, "tenant", "id"),
    sa.Index("ix_tasks_submitted", "tenant", "family", "submitted_at", "id", postgresql_where=sa.text("state = 'submitted'")),
    sa.Index("ix_tasks_over_budget", "id", postgresql_where=sa.text("over_budget")),
    sa.Index("ix_tasks_package", "tenant", postgresql_where=sa.text("package IS NOT NULL")),
    sa.Index("ix_tasks_started", "id", postgresql_where=sa.text("start IS NOT NULL")),
)


def allowance_of(columns: Any) -> sa.ColumnElement[int]:
    """Groups that a task's pace allows beyond those admitted (`admission.allowance`). `Any`: columns of a table or of a subquery."""
    version = sa.func.least(columns.version + columns.max_staleness + sa.literal_column("1"), columns.steps)
    return version * columns.groups_per_step - columns.admitted + columns.voided


MAY_ADMIT = (tasks.c.state == sa.literal_column("'running'")) & (allowance_of(tasks.c) > sa.literal_column("0"))
"""Condition that a task may admit groups; its text is that of the partial index, so that PostgreSQL uses the index."""
sa.Index("ix_tasks_may_admit", tasks.c.tenant, tasks.c.priority.desc(), tasks.c.virtual_time, tasks.c.id, postgresql_where=MAY_ADMIT)

evaluations = sa.Table(
    "evaluations",
    metadata,
    sa.Column("task", sa.Text, sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),  # version under evaluation
    sa.Column("protocol", sa.Text, primary_key=True, server_default=sa.text("'main'")),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("adapter", JSONB),  # absent for the base model
    sa.Column("reward", sa.Double),  # mean over scored attempts; absent if none was scored
    sa.Column("lower_bound", sa.Double),  # of the mean's 95 % interval; absent if too few prompts were scored
    sa.Column("results", JSONB, nullable=False, server_default=sa.text("'{}'")),
    now_by_default("planned_at"),
    moment("finished_at"),
    one_of("state", EvaluationState, "state"),
    sa.Index("ix_evaluations_running", "task", postgresql_where=sa.text("state = 'running'")),
)

groups = sa.Table(
    "groups",
    metadata,
    sa.Column("task", sa.Text, sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),  # version of the sampling policy
    sa.Column("protocol", sa.Text),  # of its evaluation; absent in training
    sa.Column("size", sa.Integer, nullable=False),  # members
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("void_reason", sa.Text),
    sa.Column("detail", sa.Text, nullable=False, server_default=sa.text("''")),  # why it was voided or abandoned
    sa.Column("row", sa.BigInteger, nullable=False),
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("charged_tokens", sa.Double, nullable=False),  # charged to the fair-share counters, corrected when the group ends
    sa.Column("step", sa.Integer),  # version that its step trains from
    moment("deadline_at"),  # on its pool's clock; other times are PostgreSQL's. Absent while planned
    sa.Column("parked_ms", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # of its pool, until its admission
    now_by_default("admitted_at"),
    moment("ready_at"),
    moment("ended_at"),
    sa.ForeignKeyConstraint(["task", "version", "protocol"], list(evaluations.primary_key), ondelete="CASCADE"),
    one_of("state", GroupState, "state"),
    one_of("void_reason", VoidReason, "void_reason"),
    sa.CheckConstraint("(state = 'void') = (void_reason IS NOT NULL)", name="void_has_reason"),
    sa.CheckConstraint("state NOT IN ('batched', 'trained') OR step IS NOT NULL", name="trained_in_a_step"),
    sa.CheckConstraint(
        "CASE WHEN protocol IS NULL THEN state NOT IN ('planned', 'ended') ELSE state IN ('planned', 'open', 'ended') END "
        f"AND (protocol IS NULL) = (number < {FIRST_EVALUATION_GROUP})",
        name="of_a_kind",
    ),
    sa.CheckConstraint("state IN ('planned', 'ended') OR deadline_at IS NOT NULL", name="open_has_deadline"),
    sa.Index("ix_groups_live", "task", "state", postgresql_where=sa.text("state IN ('open', 'ready', 'batched')")),
    sa.Index("ix_groups_refilled", "task", "version", postgresql_where=sa.text("void_reason = 'zero_variance'")),
    sa.Index("ix_groups_deadline", "deadline_at", postgresql_where=sa.text("state = 'open'")),
    sa.Index("ix_groups_void", "task", "ended_at", postgresql_where=sa.text("state = 'void'")),
    sa.Index("ix_groups_to_evaluate", "task", "number", postgresql_where=sa.text("protocol IS NOT NULL AND state IN ('planned', 'open')")),
    sa.Index("ix_groups_evaluation", "task", "version", "protocol", postgresql_where=sa.text("protocol IS NOT NULL")),
)

IN_TRAINING = groups.c.protocol.is_(None)
"""Condition that a group is a training group, not an evaluation's."""
NUMBERED_IN_TRAINING = groups.c.number < sa.literal_column(str(FIRST_EVALUATION_GROUP))
"""Condition as IN_TRAINING, on the primary key, for queries that search the latest groups."""

trajectories = sa.Table(
    "trajectories",
    metadata,
    sa.Column("task", sa.Text, primary_key=True),
    sa.Column("group", sa.Integer, primary_key=True),
    sa.Column("member", sa.Integer, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("void_reason", sa.Text),
    sa.Column("detail", sa.Text, nullable=False, server_default=sa.text("''")),
    sa.Column("reward", sa.Double),
    sa.Column("sequence", sa.BigInteger),  # stream sequence of its scored message
    sa.Column("prompt_tokens", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("sampled_tokens", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("turns", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("truncated", sa.Boolean, nullable=False, server_default=sa.text("false")),
    sa.Column("longest_turn_tokens", sa.Integer),  # absent until scored
    sa.Column("components", JSONB),  # reward components for ranking; absent if the task uses none
    sa.Column("env_ms", sa.Integer, nullable=False, server_default=sa.text("0")),  # busy time of its environment's processes
    sa.Column("away_ms", sa.Integer, nullable=False, server_default=sa.text("0")),  # wall time in its environment
    moment("scored_at"),
    sa.ForeignKeyConstraint(["task", "group"], ["groups.task", "groups.number"], ondelete="CASCADE"),
    one_of("state", TrajectoryState, "state"),
    one_of("void_reason", VoidReason, "void_reason"),
    sa.CheckConstraint("(state = 'void') = (void_reason IS NOT NULL)", name="void_has_reason"),
    sa.CheckConstraint("state IN ('open', 'void') OR (reward IS NOT NULL AND sequence IS NOT NULL)", name="scored_has_reward"),
    sa.Index("ix_trajectories_open", "task", postgresql_where=sa.text("state = 'open'")),
    sa.Index("ix_trajectories_scored", "task", "sequence", postgresql_where=sa.text("state = 'scored'")),
)

steps = sa.Table(
    "steps",
    metadata,
    sa.Column("task", sa.Text, sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),  # version trained from; the step produces version + 1
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reward", sa.Double, nullable=False),  # mean over the batch
    sa.Column("staleness_mean", sa.Double, nullable=False),
    sa.Column("staleness_max", sa.Integer, nullable=False),
    sa.Column("sampled_tokens", sa.BigInteger, nullable=False),
    sa.Column("metrics", JSONB, nullable=False, server_default=sa.text("'{}'")),
    sa.Column("adapter", JSONB),
    sa.Column("checkpoint", JSONB),
    sa.Column("batch", JSONB),  # trained trajectories, if the task keeps them
    sa.Column("digest", sa.Text),  # digest of the batch that was sent
    sa.Column("first_admitted_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("first_scored_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("last_scored_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("first_parked_ms", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # of its pool, at its first admission
    sa.Column("parked_ms", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # of its pool, when it was batched
    now_by_default("batched_at"),
    moment("started_at"),
    moment("finished_at"),
    moment("trained_at"),
    one_of("state", StepState, "state"),
    sa.CheckConstraint("(state = 'trained') = (adapter IS NOT NULL AND checkpoint IS NOT NULL)", name="trained_has_adapter"),
    sa.Index("ix_steps_batched", "task", postgresql_where=sa.text("state = 'batched'")),
    sa.Index("ix_steps_trained", "trained_at", postgresql_where=sa.text("state = 'trained'")),
)

replicas = sa.Table(
    "replicas",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("service", sa.Text, nullable=False),
    sa.Column("pool", sa.Text),
    sa.Column("report", JSONB, nullable=False),
    now_by_default("seen_at"),
)

deleted_tasks = sa.Table(
    "deleted_tasks",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),  # never reused
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),  # its final state
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
    sa.Column("sampled_tokens", sa.BigInteger, nullable=False),
    sa.Column("trained_tokens", sa.BigInteger, nullable=False),
    sa.Column("evaluation_tokens", sa.BigInteger, nullable=False),
    sa.Column("deleted_by", sa.BigInteger, nullable=False),  # stream sequence of the requesting job
    sa.Column("freed_bytes", sa.BigInteger),  # absent until its data is erased from NATS
    sa.Column("submitted_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
    now_by_default("deleted_at"),
    sa.Index(None, "tenant"),
    sa.Index("ix_deleted_tasks_pending", "id", postgresql_where=sa.text("freed_bytes IS NULL")),
)

stored_blobs = sa.Table(
    "stored_blobs",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),  # inserted by a trigger when a step is trained, deleted by the garbage collector
    sa.Column("task", sa.Text, nullable=False),  # may be a deleted task from which another started
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.CheckConstraint("kind IN ('adapter', 'checkpoint', 'batch')", name="kind"),
    sa.Index(None, "task"),
)

store_alarm = sa.Table(
    "store_alarm",
    metadata,
    sa.Column("only", sa.Boolean, primary_key=True, server_default=sa.text("true")),
    sa.Column("raised", sa.Boolean, nullable=False, server_default=sa.text("false")),
    now_by_default("since"),
    sa.CheckConstraint('"only"', name="one_row"),
)
