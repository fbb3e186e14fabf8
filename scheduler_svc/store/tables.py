"""The schema as SQLAlchemy Core tables. `migrations/` builds the same; a test compares the two.

Invariants are constraints: one step per (task, version), one trajectory per (task, group, member), states from their
enums, versions within the task's steps, a reason for everything void.
"""

from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    func,
    literal_column,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from scheduler_svc.store.states import EvaluationGroupState, EvaluationState, GroupState, StepState, TaskState, TrajectoryState, VoidReason

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _one_of(column: str, states: type[StrEnum], name: str) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(state.value) for state in states)})", name=name)


def _now(name: str) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=False, server_default=func.now())


def _moment(name: str) -> Column[object]:
    return Column(name, DateTime(timezone=True))


tenants = Table(
    "tenants",
    metadata,
    Column("id", Text, primary_key=True),
    Column("weight", Double, nullable=False, server_default=text("1")),
    Column("virtual_time", Double, nullable=False, server_default=text("0")),  # tokens consumed / weight
    _now("created_at"),
    CheckConstraint("weight > 0", name="weight_positive"),
)

tasks = Table(
    "tasks",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, ForeignKey("tenants.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("pool", Text, nullable=False),
    Column("family", Text),  # of the environment; absent until an env replica that serves it is known
    Column("spec", JSONB, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False, server_default=text("''")),
    Column("priority", Integer, nullable=False),
    Column("steps", Integer, nullable=False),
    Column("group_size", Integer, nullable=False),
    Column("groups_per_step", Integer, nullable=False),
    Column("max_staleness", Integer, nullable=False),
    Column("trajectory_tokens", Integer, nullable=False),  # longest possible
    Column("version", Integer, nullable=False, server_default=text("0")),
    Column("admitted", Integer, nullable=False, server_default=text("0")),  # groups ever; the next group's number
    Column("voided", Integer, nullable=False, server_default=text("0")),  # of those
    Column("failures_in_a_row", Integer, nullable=False, server_default=text("0")),
    Column("virtual_time", Double, nullable=False, server_default=text("0")),  # tokens consumed
    Column("group_tokens", Double),  # that a group is expected to take; absent until one was ready
    Column("booked_tokens", BigInteger, nullable=False, server_default=text("0")),  # all that the ledger has of it: a trigger's
    Column("sampled_tokens", BigInteger, nullable=False, server_default=text("0")),  # of those
    Column("warnings", JSONB, nullable=False, server_default=text("'{}'")),  # that stand about it: sentences by name
    Column("start", JSONB),  # the adapter of version 0, where that is another task's
    Column("adapter", JSONB),
    Column("checkpoint", JSONB),
    _now("submitted_at"),
    _moment("accepted_at"),
    _moment("ended_at"),
    _now("updated_at"),
    _one_of("state", TaskState, "state"),
    CheckConstraint("version BETWEEN 0 AND steps", name="version_within_steps"),
    CheckConstraint("voided BETWEEN 0 AND admitted", name="voided_within_admitted"),
    CheckConstraint("admitted - voided <= least((version + max_staleness + 1), steps) * groups_per_step", name="pace"),
    CheckConstraint("state NOT IN ('failed', 'rejected') OR reason <> ''", name="failure_has_reason"),
    Index(None, "state"),
    Index(None, "tenant"),
    Index("ix_tasks_started", "id", postgresql_where=text("start IS NOT NULL")),
)


def allowance_of(columns: Any) -> ColumnElement[int]:
    """How many groups a task's pace allows beyond those admitted (`admission.allowance`). `Any`: of a table or of a subquery."""
    version = func.least(columns.version + columns.max_staleness + literal_column("1"), columns.steps)
    return version * columns.groups_per_step - columns.admitted + columns.voided


MAY_ADMIT = (tasks.c.state == literal_column("'running'")) & (allowance_of(tasks.c) > literal_column("0"))
"""Written as the index is that finds them."""
Index("ix_tasks_may_admit", tasks.c.tenant, tasks.c.priority.desc(), tasks.c.virtual_time, tasks.c.id, postgresql_where=MAY_ADMIT)

groups = Table(
    "groups",
    metadata,
    Column("task", Text, ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("version", Integer, nullable=False),  # of the policy that samples it
    Column("state", Text, nullable=False),
    Column("void_reason", Text),
    Column("detail", Text, nullable=False, server_default=text("''")),
    Column("row", BigInteger, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("charged_tokens", Double, nullable=False),  # to the fair-share counters, corrected when it ends
    Column("step", Integer),  # the version it is trained from
    Column("deadline_at", DateTime(timezone=True), nullable=False),  # on NATS's clock; every other moment is PostgreSQL's
    _now("admitted_at"),
    _moment("ready_at"),
    _moment("ended_at"),
    _one_of("state", GroupState, "state"),
    _one_of("void_reason", VoidReason, "void_reason"),
    CheckConstraint("(state = 'void') = (void_reason IS NOT NULL)", name="void_has_reason"),
    CheckConstraint("state NOT IN ('batched', 'trained') OR step IS NOT NULL", name="trained_in_a_step"),
    Index("ix_groups_live", "task", "state", postgresql_where=text("state IN ('open', 'ready', 'batched')")),
    Index("ix_groups_refilled", "task", "version", postgresql_where=text("void_reason = 'zero_variance'")),
    Index("ix_groups_deadline", "deadline_at", postgresql_where=text("state = 'open'")),
    Index("ix_groups_void", "task", "ended_at", postgresql_where=text("state = 'void'")),
)

trajectories = Table(
    "trajectories",
    metadata,
    Column("task", Text, primary_key=True),
    Column("group", Integer, primary_key=True),
    Column("member", Integer, primary_key=True),
    Column("state", Text, nullable=False),
    Column("void_reason", Text),
    Column("detail", Text, nullable=False, server_default=text("''")),
    Column("reward", Double),
    Column("sequence", BigInteger),  # of the scored message that counts
    Column("prompt_tokens", Integer, nullable=False, server_default=text("0")),
    Column("sampled_tokens", Integer, nullable=False, server_default=text("0")),
    Column("turns", Integer, nullable=False, server_default=text("0")),
    Column("truncated", Boolean, nullable=False, server_default=text("false")),
    _moment("scored_at"),
    ForeignKeyConstraint(["task", "group"], ["groups.task", "groups.number"], ondelete="CASCADE"),
    _one_of("state", TrajectoryState, "state"),
    _one_of("void_reason", VoidReason, "void_reason"),
    CheckConstraint("(state = 'void') = (void_reason IS NOT NULL)", name="void_has_reason"),
    CheckConstraint("state NOT IN ('scored', 'trained') OR (reward IS NOT NULL AND sequence IS NOT NULL)", name="scored_has_reward"),
    Index("ix_trajectories_open", "task", postgresql_where=text("state = 'open'")),
    Index("ix_trajectories_scored", "task", "sequence", postgresql_where=text("state = 'scored'")),
)

steps = Table(
    "steps",
    metadata,
    Column("task", Text, ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    Column("version", Integer, primary_key=True),  # trained from; the result is version + 1
    Column("state", Text, nullable=False),
    Column("reward", Double, nullable=False),  # mean over the batch
    Column("staleness_mean", Double, nullable=False),
    Column("staleness_max", Integer, nullable=False),
    Column("sampled_tokens", BigInteger, nullable=False),
    Column("metrics", JSONB, nullable=False, server_default=text("'{}'")),
    Column("adapter", JSONB),
    Column("checkpoint", JSONB),
    Column("batch", JSONB),  # the trajectories that were trained, where the task keeps them
    Column("first_admitted_at", DateTime(timezone=True), nullable=False),
    Column("first_scored_at", DateTime(timezone=True), nullable=False),
    Column("last_scored_at", DateTime(timezone=True), nullable=False),
    _now("batched_at"),
    _moment("started_at"),
    _moment("finished_at"),
    _moment("trained_at"),
    _one_of("state", StepState, "state"),
    CheckConstraint("(state = 'trained') = (adapter IS NOT NULL AND checkpoint IS NOT NULL)", name="trained_has_adapter"),
    Index("ix_steps_batched", "task", postgresql_where=text("state = 'batched'")),
)

evaluations = Table(
    "evaluations",
    metadata,
    Column("task", Text, ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    Column("version", Integer, primary_key=True),  # that answers
    Column("state", Text, nullable=False),
    Column("adapter", JSONB),  # absent for the base model itself
    Column("reward", Double),  # mean over scored attempts; absent where there is none
    Column("results", JSONB, nullable=False, server_default=text("'{}'")),
    _now("planned_at"),
    _moment("finished_at"),
    _one_of("state", EvaluationState, "state"),
    Index("ix_evaluations_running", "task", postgresql_where=text("state = 'running'")),
)

evaluation_groups = Table(
    "evaluation_groups",
    metadata,
    Column("task", Text, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("prompt", Integer, nullable=False),
    Column("size", Integer, nullable=False),  # attempts
    Column("state", Text, nullable=False),
    Column("detail", Text, nullable=False, server_default=text("''")),  # why it was given up
    Column("charged_tokens", Double, nullable=False, server_default=text("0")),  # to the fair-share counters, corrected when it ends
    _moment("deadline_at"),
    ForeignKeyConstraint(["task", "version"], ["evaluations.task", "evaluations.version"], ondelete="CASCADE"),
    _one_of("state", EvaluationGroupState, "state"),
    CheckConstraint("state <> 'open' OR deadline_at IS NOT NULL", name="open_has_deadline"),
    Index("ix_evaluation_groups_version", "task", "version"),
    Index("ix_evaluation_groups_live", "task", "number", postgresql_where=text("state IN ('planned', 'open')")),
)

evaluation_members = Table(
    "evaluation_members",
    metadata,
    Column("task", Text, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("member", Integer, primary_key=True),
    Column("reward", Double),
    Column("prompt_tokens", Integer, nullable=False),
    Column("sampled_tokens", Integer, nullable=False),
    Column("turns", Integer, nullable=False),
    Column("truncated", Boolean, nullable=False),
    Column("failure", Text),
    ForeignKeyConstraint(["task", "number"], ["evaluation_groups.task", "evaluation_groups.number"], ondelete="CASCADE"),
    CheckConstraint("(reward IS NULL) = (failure IS NOT NULL)", name="scored_or_failed"),
)

ledger = Table(
    "ledger",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("tenant", Text, ForeignKey("tenants.id"), nullable=False),
    Column("task", Text, ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("number", Integer, nullable=False),  # the group's, or the step's version
    Column("tokens", BigInteger, nullable=False),
    _now("at"),
    CheckConstraint("kind IN ('prompt', 'sampled', 'trained', 'evaluation')", name="kind"),
    UniqueConstraint("task", "kind", "number"),
)

events = Table(
    "events",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("data", JSONB, nullable=False),
    _now("at"),
    Index(None, "task", "id"),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("subject", Text, nullable=False),
    Column("message_id", Text, nullable=False),
    Column("headers", JSONB, nullable=False),
    Column("body", LargeBinary, nullable=False),
    _now("created_at"),
)

relay = Table(
    "relay",
    metadata,
    Column("only", Boolean, primary_key=True, server_default=text("true")),
    Column("deployment", Text, nullable=False, server_default=text("gen_random_uuid()::text")),  # names this past, see store_consistency.py
    Column("position", BigInteger, nullable=False, server_default=text("0")),  # the last row of the outbox that NATS confirmed
    CheckConstraint('"only"', name="one_row"),
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("sequence", BigInteger, nullable=False, unique=True),  # in the stream FAILED
    Column("stage", Text, nullable=False),
    Column("task", Text),
    Column("subject", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    _now("at"),
    Column("resent_by", BigInteger),  # the job that had it sent again, by its sequence in the stream JOBS
    _moment("resent_at"),
    Index(None, "task"),
)

replicas = Table(
    "replicas",
    metadata,
    Column("id", Text, primary_key=True),
    Column("service", Text, nullable=False),
    Column("pool", Text),
    Column("report", JSONB, nullable=False),
    _now("seen_at"),
)

deleted_tasks = Table(
    "deleted_tasks",
    metadata,
    Column("id", Text, primary_key=True),  # never given to another task
    Column("tenant", Text, ForeignKey("tenants.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("state", Text, nullable=False),  # that it ended in
    Column("version", Integer, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("sampled_tokens", BigInteger, nullable=False),
    Column("trained_tokens", BigInteger, nullable=False),
    Column("evaluation_tokens", BigInteger, nullable=False),
    Column("deleted_by", BigInteger, nullable=False),  # the job that asked for it, by its sequence in the stream JOBS
    Column("freed_bytes", BigInteger),  # absent until all of it is gone from NATS
    Column("submitted_at", DateTime(timezone=True), nullable=False),
    Column("ended_at", DateTime(timezone=True), nullable=False),
    _now("deleted_at"),
    Index(None, "tenant"),
    Index("ix_deleted_tasks_pending", "id", postgresql_where=text("freed_bytes IS NULL")),
)

stored_blobs = Table(
    "stored_blobs",
    metadata,
    Column("name", Text, primary_key=True),  # a trigger writes the rows when a step is trained, the cleaner deletes them
    Column("task", Text, nullable=False),  # may be deleted, where another task started from it
    Column("version", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    CheckConstraint("kind IN ('adapter', 'checkpoint', 'batch')", name="kind"),
    Index(None, "task"),
)

store_alarm = Table(
    "store_alarm",
    metadata,
    Column("only", Boolean, primary_key=True, server_default=text("true")),
    Column("raised", Boolean, nullable=False, server_default=text("false")),
    _now("since"),
    CheckConstraint('"only"', name="one_row"),
)
