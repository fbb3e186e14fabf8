"""Queries on optimizer steps."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import BigInteger, Double, Integer, Row, Select, Text, cast, delete, func, literal, select, union_all, update
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import AdapterRef, BatchGroup, BatchMember, BlobRef, TrainBatch, WeightUpdated, from_json
from scheduler_svc.base.sql import NOW_S, Rows, Statement, any_of, given, in_state, keyed, keys, parked_ms, parked_ms_of_task, seconds
from scheduler_svc.base.states import GroupState, StepState, TrajectoryState
from scheduler_svc.base.tables import groups, ledger, outbox, pool_clocks, steps, tasks, trajectories
from scheduler_svc.training.decisions.endings import StepMetrics
from scheduler_svc.training.queries.tasks import Task

BlobKind = Literal["adapter", "checkpoint", "batch"]
BLOB_KINDS: tuple[BlobKind, ...] = ("adapter", "checkpoint", "batch")


@dataclass(frozen=True)
class StepBlob:
    """A blob referenced by a trained step."""

    version: int
    """Version that the step produced."""
    kind: BlobKind
    ref: BlobRef
    since: int | None = None
    """Version from which a checkpoint without a stored state is recomputed; None for other blobs."""


@dataclass(frozen=True)
class SentStep:
    """A step that was sent to the trainer."""

    task: str
    pool: str
    version: int
    """Version that the step trains from."""
    digest: str
    """Digest of the batch that was sent (`TrainBatch.digest`)."""

    def is_made_by(self, updated: WeightUpdated) -> bool:
        """Whether `updated` announces the version that this step produces."""
        return updated.version == self.version + 1 and self.digest == updated.trained


@dataclass(frozen=True)
class StepSummary:
    """Columns of a step's row for events and status."""

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


_wanted = Rows("wanted", task=Text, number=Integer, step=Integer)
_chosen = (
    update(groups)
    .where(groups.c.task == _wanted.c.task, groups.c.number == _wanted.c.number, in_state(groups.c.state, GroupState.READY))
    .values(state=GroupState.BATCHED, step=_wanted.c.step)
    .returning(groups.c.task, groups.c.number, groups.c.version, groups.c.step, groups.c.admitted_at, groups.c.parked_ms)
    .cte("chosen")
)
_chosen_members = trajectories.join(_chosen, (trajectories.c.task == _chosen.c.task) & (trajectories.c.group == _chosen.c.number))
_step = {
    "task": _chosen.c.task,
    "version": _chosen.c.step,
    "state": literal(StepState.BATCHED.value),
    "reward": func.avg(trajectories.c.reward),
    "staleness_mean": func.avg(_chosen.c.step - _chosen.c.version),
    "staleness_max": _chosen.c.step - func.min(_chosen.c.version),
    "sampled_tokens": func.sum(trajectories.c.sampled_tokens),
    "first_admitted_at": func.min(_chosen.c.admitted_at),
    "first_scored_at": func.min(trajectories.c.scored_at),
    "last_scored_at": func.max(trajectories.c.scored_at),
    "first_parked_ms": func.min(_chosen.c.parked_ms),
    "parked_ms": parked_ms_of_task(_chosen.c.task),
}
_of_steps = select(*_step.values()).select_from(_chosen_members).group_by(_chosen.c.task, _chosen.c.step)
_written = insert(steps).from_select(list(_step), _of_steps).cte("written")
_BATCH = Statement(
    select(_chosen.c.task, _chosen.c.number, _chosen.c.version, trajectories.c.member, trajectories.c.sequence, trajectories.c.reward)
    .select_from(_chosen_members)
    .order_by(_chosen.c.number, trajectories.c.member)
    .add_cte(_written)
)


async def batch_groups(connection: AsyncConnection, chosen: Mapping[str, tuple[int, Sequence[int]]]) -> dict[str, list[BatchGroup]]:
    """Batch groups into steps and insert the steps; returns the groups with their members, ordered, by task.

    `chosen`: by task, the version that the step trains from, and the numbers of its groups.
    """
    wanted = [(task, number, version) for task, (version, numbers) in chosen.items() for number in numbers]
    rows: dict[str, list[Any]] = {task: [] for task in chosen}
    for row in await _BATCH.run(connection, _wanted.of(wanted)):
        rows[row.task].append(row)
    return {task: _batch_of(own) for task, own in rows.items()}


_sent = Rows("sent", task=Text, version=Integer, digest=Text)
_SENT_AS = Statement(update(steps).where(steps.c.task == _sent.c.task, steps.c.version == _sent.c.version).values(digest=_sent.c.digest))


async def note_digests(connection: AsyncConnection, batches: Sequence[TrainBatch]) -> None:
    """Record the digests of the batches that were sent for these steps."""
    await _SENT_AS.run(connection, _sent.of([(batch.task, batch.version, batch.digest) for batch in batches]))


async def members_of_step(connection: AsyncConnection, task: str, version: int) -> list[BatchGroup]:
    """Groups of a step with their members, ordered."""
    statement = (
        select(groups.c.number, groups.c.version, trajectories.c.member, trajectories.c.sequence, trajectories.c.reward)
        .join(trajectories, (trajectories.c.task == groups.c.task) & (trajectories.c.group == groups.c.number))
        .where(groups.c.task == task, groups.c.step == version)
        .order_by(groups.c.number, trajectories.c.member)
    )
    return _batch_of((await connection.execute(statement)).all())


def _batch_of(rows: Sequence[Row[int, int, int, int, float]]) -> list[BatchGroup]:
    """Groups built from `rows`, which are ordered by group and member."""
    found: dict[int, BatchGroup] = {}
    for row in rows:
        group = found.setdefault(row.number, BatchGroup(group=row.number, version=row.version, members=[]))
        group.members.append(BatchMember(member=row.member, sequence=row.sequence, reward=row.reward))
    return list(found.values())


async def tasks_in_training(connection: AsyncConnection) -> set[str]:
    """Tasks with a step at the trainer."""
    return set((await connection.execute(select(steps.c.task).where(in_state(steps.c.state, StepState.BATCHED)))).scalars())


async def sent_before(connection: AsyncConnection, age_s: float) -> list[SentStep]:
    """Steps sent to the trainer more than `age_s` ago on their pool's clock, except those still in the outbox."""
    subject = func.concat("trajectories.batch.", tasks.c.pool, "%.", tasks.c.id)  # queue of the pool, or of the task's home
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
    """Whether the step is still at the trainer."""
    statement = select(steps.c.task).where(steps.c.task == step.task, steps.c.version == step.version, steps.c.state == StepState.BATCHED)
    return (await connection.execute(statement)).first() is not None


_done = Rows(
    "done",
    tenant=Text,
    task=Text,
    version=Integer,
    metrics=Text,
    adapter=Text,
    checkpoint=Text,
    batch=Text,
    started_s=Double,
    finished_s=Double,
    tokens=BigInteger,
)
_trained_step = (
    update(steps)
    .where(steps.c.task == _done.c.task, steps.c.version == _done.c.version, steps.c.state == StepState.BATCHED)
    .values(
        state=StepState.TRAINED,
        **{name: cast(_done.c[name], JSONB) for name in ("metrics", "adapter", "checkpoint", "batch")},
        started_at=func.to_timestamp(_done.c.started_s),
        finished_at=func.to_timestamp(_done.c.finished_s),
        trained_at=func.now(),
    )
    .returning(steps)
    .cte("trained_step")
)
_trained_groups = (
    update(groups)
    .where(groups.c.task == _done.c.task, groups.c.step == _done.c.version, in_state(groups.c.state, GroupState.BATCHED))
    .values(state=GroupState.TRAINED, ended_at=func.now())
    .returning(groups.c.task, groups.c.number)
    .cte("trained_groups")
)
_trained_members = (
    update(trajectories)
    .where(
        trajectories.c.task == _trained_groups.c.task,
        trajectories.c.group == _trained_groups.c.number,
        trajectories.c.state == TrajectoryState.SCORED,
    )
    .values(state=TrajectoryState.TRAINED)
    .cte("trained_members")
)
_made = {
    "tenant": _done.c.tenant,
    "task": _done.c.task,
    "kind": literal("trained"),
    "number": _done.c.version + 1,
    "tokens": _done.c.tokens,
}
_booked = insert(ledger).from_select(list(_made), select(*_made.values())).on_conflict_do_nothing().cte("booked")
_SUMMARY = (_trained_step.c.task, *(_trained_step.c[name] for name in StepSummary.__dataclass_fields__))
_FINISH = Statement(select(*_SUMMARY).add_cte(_trained_members, _booked))


async def finish_steps(connection: AsyncConnection, updates: Sequence[WeightUpdated]) -> dict[str, StepSummary]:
    """Mark these steps (one per task), their groups and members as trained, and insert their ledger rows; returns the steps by task."""
    rows = [
        (
            updated.tenant,
            updated.task,
            updated.version - 1,
            json.dumps(updated.metrics),
            updated.adapter.model_dump_json(),
            updated.checkpoint.model_dump_json(),
            updated.batch.model_dump_json() if updated.batch else None,
            updated.started_s,
            updated.finished_s,
            updated.trained_tokens,
        )
        for updated in updates
    ]
    return {row[0]: StepSummary(*row[1:]) for row in await _FINISH.run(connection, _done.of(rows))}


_measured_of = Rows("measured_of", task=Text)
_measured = select(*(steps.c.metrics[name].astext.cast(Double).label(name) for name in StepMetrics.__dataclass_fields__)).where(
    steps.c.task == _measured_of.c.task, steps.c.state == StepState.TRAINED
)


def _window(first: bool) -> Select[Any]:
    order = steps.c.version if first else steps.c.version.desc()
    window = _measured.order_by(order).limit(given("most", Integer)).lateral("window")
    return select(_measured_of.c.task, literal(first).label("is_first"), *window.c)


_MEASURED = Statement(union_all(_window(True), _window(False)))


async def measured_steps(
    connection: AsyncConnection, ids: Collection[str], most: int
) -> dict[str, tuple[list[StepMetrics], list[StepMetrics]]]:
    """Metrics for warnings, by task: those of the first `most` and of the latest `most` trained steps, both in order."""
    found = {task: (list[StepMetrics](), list[StepMetrics]()) for task in ids}
    for task, is_first, *metrics in await _MEASURED.run(connection, _measured_of.of([*zip(ids)]) | {"most": most}):
        first, latest = found[task]
        if is_first:
            first.append(StepMetrics(*metrics))
        else:
            latest.insert(0, StepMetrics(*metrics))
    return found


async def void_steps(connection: AsyncConnection, task: str) -> None:
    """Void the steps of an ended task that are at the trainer."""
    await connection.execute(
        update(steps).where(steps.c.task == task, in_state(steps.c.state, StepState.BATCHED)).values(state=StepState.VOID)
    )


async def withdraw_steps(connection: AsyncConnection, task: str) -> None:
    """Delete the task's steps at the trainer, so that its version gets a new batch; the steps' groups must be void."""
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
    """Stream sequence of the oldest scored message that a step may still read, by task; tasks without any are absent."""
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
    """Blobs referenced by the task's trained steps."""
    return [blob for row in (await connection.execute(_BLOBS.where(steps.c.task == task))).all() for blob in _blobs_of(row)]


async def blobs_of_versions(connection: AsyncConnection, versions: Collection[tuple[str, int]]) -> dict[str, list[StepBlob]]:
    """Blobs of the steps that produced these versions, by task."""
    found: dict[str, list[StepBlob]] = {task: [] for task, _ in versions}
    for row in await _BLOBS_OF_VERSIONS.run(connection, keys([(task, version - 1) for task, version in versions])):
        found[row.task] += _blobs_of(row)
    return found


async def restored_from(connection: AsyncConnection, task: Task) -> list[str]:
    """Names of the blobs from which the training state of the task's version is read or recomputed; empty at version 0."""
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
