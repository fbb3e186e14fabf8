"""Queries on optimizer steps."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import BigInteger, Double, Integer, Row, Text, delete, func, literal, select, update
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import AdapterRef, BatchGroup, BatchMember, BlobRef, WeightUpdated, as_json, from_json
from scheduler_svc.decisions.endings.task_warnings import StepMetrics
from scheduler_svc.store.queries.sql.parameters import any_of, given, in_state, keyed, keys
from scheduler_svc.store.queries.sql.pool_time import NOW_S, parked_ms, parked_ms_of_task, seconds
from scheduler_svc.store.queries.sql.statement import Statement
from scheduler_svc.store.queries.training.tasks import Task
from scheduler_svc.store.states import GroupState, StepState, TrajectoryState
from scheduler_svc.store.tables import groups, ledger, outbox, pool_clocks, steps, tasks, trajectories

BlobKind = Literal["adapter", "checkpoint", "batch"]
BLOB_KINDS: tuple[BlobKind, ...] = ("adapter", "checkpoint", "batch")


@dataclass(frozen=True)
class StepBlob:
    """A blob that a trained step refers to."""

    version: int
    """Version that the step made."""
    kind: BlobKind
    ref: BlobRef
    since: int | None = None
    """Version from which a checkpoint without a state is recomputed; None for other blobs."""


@dataclass(frozen=True)
class SentStep:
    """A step that is with the trainer."""

    task: str
    pool: str
    version: int
    """Version that the step trains from."""
    digest: str
    """`TrainBatch.digest`."""

    def is_made_by(self, updated: WeightUpdated) -> bool:
        """Whether the announcement is that of this step."""
        return updated.version == self.version + 1 and self.digest == updated.trained


@dataclass(frozen=True)
class StepSummary:
    """A step's row, for events and status."""

    version: int
    reward: float
    staleness_mean: float
    staleness_max: int
    sampled_tokens: int
    first_admitted_at: datetime
    first_scored_at: datetime
    last_scored_at: datetime
    batched_at: datetime
    trained_at: datetime


_chosen = (
    update(groups)
    .where(groups.c.task == given("of_task"), groups.c.number == any_of("numbers", Integer), in_state(groups.c.state, GroupState.READY))
    .values(state=GroupState.BATCHED, step=given("of_version"))
    .returning(groups.c.number, groups.c.version, groups.c.admitted_at, groups.c.parked_ms)
    .cte("chosen")
)
_chosen_members = trajectories.join(_chosen, (trajectories.c.task == given("of_task")) & (trajectories.c.group == _chosen.c.number))
_step = {
    "task": given("of_task", Text),
    "version": given("of_version", Integer),
    "state": literal(StepState.BATCHED.value),
    "reward": func.avg(trajectories.c.reward),
    "staleness_mean": func.avg(given("of_version", Integer) - _chosen.c.version),
    "staleness_max": given("of_version", Integer) - func.min(_chosen.c.version),
    "sampled_tokens": func.sum(trajectories.c.sampled_tokens),
    "first_admitted_at": func.min(_chosen.c.admitted_at),
    "first_scored_at": func.min(trajectories.c.scored_at),
    "last_scored_at": func.max(trajectories.c.scored_at),
    "first_parked_ms": func.min(_chosen.c.parked_ms),
    "parked_ms": parked_ms_of_task(given("of_task", Text)),
}
_written = insert(steps).from_select(list(_step), select(*_step.values()).select_from(_chosen_members)).cte("written")
_BATCH = Statement(
    select(_chosen.c.number, _chosen.c.version, trajectories.c.member, trajectories.c.sequence, trajectories.c.reward)
    .select_from(_chosen_members)
    .order_by(_chosen.c.number, trajectories.c.member)
    .add_cte(_written)
)


async def batch_groups(connection: AsyncConnection, task: str, version: int, numbers: Sequence[int]) -> list[BatchGroup]:
    """Batch the groups into a step, and write its row; returns the groups with their members, in order."""
    about = {"of_task": task, "of_version": version, "numbers": list(numbers)}
    return _batch_of(await _BATCH.run(connection, about))


_SENT_AS = Statement(
    update(steps)
    .where(steps.c.task == given("of_task"), steps.c.version == given("of_version"))
    .values(digest=given("with_digest"))
    .returning(steps.c.version)
)


async def note_digest(connection: AsyncConnection, task: str, version: int, digest: str) -> None:
    """Record the digest of the batch that the step is sent as."""
    await _SENT_AS.run(connection, {"of_task": task, "of_version": version, "with_digest": digest})


async def members_of_step(connection: AsyncConnection, task: str, version: int) -> list[BatchGroup]:
    """The groups of a step and their members, in order."""
    statement = (
        select(groups.c.number, groups.c.version, trajectories.c.member, trajectories.c.sequence, trajectories.c.reward)
        .join(trajectories, (trajectories.c.task == groups.c.task) & (trajectories.c.group == groups.c.number))
        .where(groups.c.task == task, groups.c.step == version)
        .order_by(groups.c.number, trajectories.c.member)
    )
    return _batch_of((await connection.execute(statement)).all())


def _batch_of(rows: Sequence[Row[int, int, int, int, float]]) -> list[BatchGroup]:
    """Groups of `rows`, whose members are in order."""
    found: dict[int, BatchGroup] = {}
    for row in rows:
        group = found.setdefault(row.number, BatchGroup(group=row.number, version=row.version, members=[]))
        group.members.append(BatchMember(member=row.member, sequence=row.sequence, reward=row.reward))
    return list(found.values())


async def tasks_in_training(connection: AsyncConnection) -> set[str]:
    """Tasks with a step at the trainer."""
    return set((await connection.execute(select(steps.c.task).where(in_state(steps.c.state, StepState.BATCHED)))).scalars())


async def sent_before(connection: AsyncConnection, age_s: float) -> list[SentStep]:
    """Steps that were sent to the trainer longer than `age_s` of their pool's time ago, without those still in the outbox."""
    subject = func.concat("trajectories.batch.", tasks.c.pool, "%.", tasks.c.id)  # of its pool's queue, or of its home's
    parked = seconds(func.greatest(0, parked_ms(NOW_S) - steps.c.parked_ms))
    statement = (
        select(steps.c.task, tasks.c.pool, steps.c.version, steps.c.digest)
        .select_from(steps.join(tasks, tasks.c.id == steps.c.task).outerjoin(pool_clocks, pool_clocks.c.pool == tasks.c.pool))
        .where(
            in_state(steps.c.state, StepState.BATCHED),
            steps.c.batched_at < func.now() - func.make_interval(0, 0, 0, 0, 0, 0, age_s) - parked,
        )
        .where(~select(outbox.c.id).where(outbox.c.subject.like(subject)).exists())
    )
    return [SentStep(row.task, row.pool, row.version, row.digest) for row in (await connection.execute(statement)).all()]


async def is_sent(connection: AsyncConnection, step: SentStep) -> bool:
    """Whether the step is still with the trainer."""
    statement = select(steps.c.task).where(steps.c.task == step.task, steps.c.version == step.version, steps.c.state == StepState.BATCHED)
    return (await connection.execute(statement)).first() is not None


_trained_step = (
    update(steps)
    .where(steps.c.task == given("of_task"), steps.c.version == given("of_version"), steps.c.state == StepState.BATCHED)
    .values(
        state=StepState.TRAINED,
        metrics=given("with_metrics"),
        adapter=given("made_adapter"),
        checkpoint=given("made_checkpoint"),
        batch=given("of_batch", JSONB(none_as_null=True)),
        started_at=given("at_start"),
        finished_at=given("at_end"),
        trained_at=func.now(),
    )
    .returning(steps)
    .cte("trained_step")
)
_trained_groups = (
    update(groups)
    .where(groups.c.task == given("of_task"), groups.c.step == given("of_version"), in_state(groups.c.state, GroupState.BATCHED))
    .values(state=GroupState.TRAINED, ended_at=func.now())
    .returning(groups.c.number)
    .cte("trained_groups")
)
_trained_members = (
    update(trajectories)
    .where(
        trajectories.c.task == given("of_task"),
        trajectories.c.group.in_(select(_trained_groups.c.number)),
        trajectories.c.state == TrajectoryState.SCORED,
    )
    .values(state=TrajectoryState.TRAINED)
    .cte("trained_members")
)
_made = {
    "tenant": given("of_tenant", Text),
    "task": given("of_task", Text),
    "kind": literal("trained"),
    "number": given("of_version", Integer) + 1,
    "tokens": given("with_tokens", BigInteger),
}
_booked = insert(ledger).from_select(list(_made), select(*_made.values())).on_conflict_do_nothing().cte("booked")
_FINISH = Statement(select(*(_trained_step.c[name] for name in StepSummary.__dataclass_fields__)).add_cte(_trained_members, _booked))


async def finish_step(connection: AsyncConnection, updated: WeightUpdated) -> StepSummary:
    """Mark the step, its groups and their members as trained, and write its ledger row."""
    about = {
        "of_tenant": updated.tenant,
        "of_task": updated.task,
        "of_version": updated.version - 1,
        "with_metrics": updated.metrics,
        "made_adapter": as_json(updated.adapter),
        "made_checkpoint": as_json(updated.checkpoint),
        "of_batch": as_json(updated.batch) if updated.batch else None,
        "at_start": datetime.fromtimestamp(updated.started_s, UTC),
        "at_end": datetime.fromtimestamp(updated.finished_s, UTC),
        "with_tokens": updated.trained_tokens,
    }
    return StepSummary(*(await _FINISH.run(connection, about))[0])


_measured = (
    select(
        steps.c.version,
        *(steps.c.metrics[name].astext.cast(Double).label(name) for name in StepMetrics.__dataclass_fields__),
    )
    .where(steps.c.task == given("of_task"), steps.c.state == StepState.TRAINED)
    .limit(given("most", Integer))
)
_FIRST_MEASURED = Statement(_measured.order_by(steps.c.version))
_LATEST_MEASURED = Statement(_measured.order_by(steps.c.version.desc()))


async def measured_steps(connection: AsyncConnection, task: str, most: int) -> tuple[list[StepMetrics], list[StepMetrics]]:
    """Metrics for warnings, of the task's first trained steps and of its latest, in order."""
    about = {"of_task": task, "most": most}
    first, latest = [await statement.run(connection, about) for statement in (_FIRST_MEASURED, _LATEST_MEASURED)]
    return [StepMetrics(*row[1:]) for row in first], [StepMetrics(*row[1:]) for row in reversed(latest)]


async def void_steps(connection: AsyncConnection, task: str) -> None:
    """Void the steps of an ended task that were sent to the trainer."""
    await connection.execute(
        update(steps).where(steps.c.task == task, in_state(steps.c.state, StepState.BATCHED)).values(state=StepState.VOID)
    )


async def withdraw_steps(connection: AsyncConnection, task: str) -> None:
    """Delete steps that were sent to the trainer, so that the version gets a new batch; their groups must be void."""
    taken_back = (
        delete(steps).where(steps.c.task == task, in_state(steps.c.state, StepState.BATCHED)).returning(steps.c.version).cte("taken_back")
    )
    await connection.execute(
        update(groups)
        .where(groups.c.task == task, groups.c.state == GroupState.VOID, groups.c.step.in_(select(taken_back.c.version)))
        .values(step=None)
    )


_FIRST_NEEDED = Statement(
    select(trajectories.c.task, func.min(trajectories.c.sequence).label("first"))
    .where(trajectories.c.task == any_of("ids"), in_state(trajectories.c.state, TrajectoryState.SCORED))
    .group_by(trajectories.c.task)
)


async def first_needed_sequences(connection: AsyncConnection, ids: Collection[str]) -> dict[str, int]:
    """Sequence of the oldest scored message that a step may still read, by task; tasks without any are absent."""
    return {row.task: row.first for row in await _FIRST_NEEDED.run(connection, {"ids": sorted(ids)})}


async def adapter_of(connection: AsyncConnection, task: str, version: int) -> AdapterRef | None:
    statement = select(steps.c.adapter).where(steps.c.task == task, steps.c.version == version - 1, steps.c.state == StepState.TRAINED)
    found = (await connection.execute(statement)).scalar_one_or_none()
    return from_json(AdapterRef, found) if found else None


_BLOBS = select(steps.c.task, steps.c.version, steps.c.adapter["blob"].label("adapter"), steps.c.checkpoint, steps.c.batch).where(
    steps.c.state == StepState.TRAINED
)
_BLOBS_OF_VERSIONS = Statement(_BLOBS.where(keyed(steps.c.task, steps.c.version)))


async def blobs_of_steps(connection: AsyncConnection, task: str) -> list[StepBlob]:
    """Blobs that the task's trained steps refer to."""
    return [blob for row in (await connection.execute(_BLOBS.where(steps.c.task == task))).all() for blob in _blobs_of(row)]


async def blobs_of_versions(connection: AsyncConnection, versions: Collection[tuple[str, int]]) -> dict[str, list[StepBlob]]:
    """Blobs of the steps that made these versions, by task."""
    found: dict[str, list[StepBlob]] = {task: [] for task, _ in versions}
    for row in await _BLOBS_OF_VERSIONS.run(connection, keys([(task, version - 1) for task, version in versions])):
        found[row.task] += _blobs_of(row)
    return found


async def restored_from(connection: AsyncConnection, task: Task) -> list[str]:
    """Names of the blobs from which the state of the task's version is read or recomputed; none at version 0."""
    blobs = await blobs_of_steps(connection, task.id)
    since = next((blob.since for blob in blobs if (blob.kind, blob.version) == ("checkpoint", task.version)), None)
    first = task.version if since is None else since
    return [
        blob.ref.name
        for blob in blobs
        if (blob.kind == "checkpoint" and first <= blob.version <= task.version)
        or (blob.kind == "batch" and first < blob.version <= task.version)
    ]


def _blobs_of(row: Any) -> list[StepBlob]:
    return [
        StepBlob(row.version + 1, kind, from_json(BlobRef, named), named.get("since"))
        for kind in BLOB_KINDS
        if (named := getattr(row, kind)) is not None
    ]
