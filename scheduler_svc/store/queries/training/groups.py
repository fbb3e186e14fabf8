"""Queries on groups and trajectories."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import BigInteger, DateTime, Double, Integer, Text, and_, case, func, literal, not_, select, union_all, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.decisions.batching import LiveGroup
from scheduler_svc.store.queries.sql.parameters import GroupKey, Rows, in_state, keyed, keys
from scheduler_svc.store.queries.sql.statement import Statement
from scheduler_svc.store.states import GroupState, TrajectoryState, VoidReason
from scheduler_svc.store.tables import evaluation_groups, groups, steps, tasks, trajectories

LIVE_GROUPS = (GroupState.OPEN, GroupState.READY, GroupState.BATCHED)


@dataclass(frozen=True)
class NewGroup:
    task: str
    number: int
    version: int
    row: int
    seed: int
    size: int
    charged_tokens: float
    deadline_at: datetime
    """Deadline on the pool's clock, as services see it; `admitted_at` is PostgreSQL's."""
    parked_ms: int = 0
    """Milliseconds for which the pool was parked until the group's admission."""


@dataclass(frozen=True)
class EndedGroup:
    """A group that became ready or void, with what it consumed."""

    task: str
    number: int
    charged_tokens: float
    prompt_tokens: int
    sampled_tokens: int
    env_ms: int

    @property
    def key(self) -> GroupKey:
        return self.task, self.number


@dataclass(frozen=True)
class DecidedGroup:
    """An open group that is decided: all of its members are scored, or one failed."""

    group: EndedGroup
    version: int
    failure: str | None
    """Failure of the first failed member."""


_new = Rows(
    "new",
    task=Text,
    number=Integer,
    version=Integer,
    row=BigInteger,
    seed=BigInteger,
    charged_tokens=Double,
    deadline_at=DateTime(timezone=True),
    parked_ms=BigInteger,
)
_group = {**_new.c, "state": literal(GroupState.OPEN.value)}
_written = insert(groups).from_select(list(_group), select(*_group.values())).returning(groups.c.task, groups.c.number).cte("written")
_member = {
    "task": _written.c.task,
    "group": _written.c.number,
    "member": func.generate_series(0, tasks.c.group_size - 1),
    "state": literal(TrajectoryState.OPEN.value),
}
_ADD = Statement(insert(trajectories).from_select(list(_member), select(*_member.values()).join(tasks, tasks.c.id == _written.c.task)))


async def add_groups(connection: AsyncConnection, new: Sequence[NewGroup]) -> None:
    """Write open groups with all their members."""
    if new:
        names = ("task", "number", "version", "row", "seed", "charged_tokens", "deadline_at", "parked_ms")
        rows = [tuple(getattr(group, name) for name in names) for group in new]
        await _ADD.run(connection, _new.of(rows))


_is_scored = trajectories.c.state == TrajectoryState.SCORED
_LOOK = Statement(
    select(
        groups.c.task,
        groups.c.number,
        groups.c.version,
        groups.c.charged_tokens,
        func.sum(trajectories.c.prompt_tokens).label("prompt_tokens"),
        func.sum(trajectories.c.sampled_tokens).label("sampled_tokens"),
        func.sum(trajectories.c.env_ms).label("env_ms"),
        func.min(case((trajectories.c.state == TrajectoryState.VOID, trajectories.c.detail))).label("failure"),
    )
    .join(trajectories, and_(trajectories.c.task == groups.c.task, trajectories.c.group == groups.c.number))
    .where(keyed(groups.c.task, groups.c.number), groups.c.state == GroupState.OPEN)
    .group_by(groups.c.task, groups.c.number)
    .having(func.bool_and(_is_scored) | func.bool_or(trajectories.c.state == TrajectoryState.VOID))
    .order_by(groups.c.task, groups.c.number)
)


async def groups_to_end(connection: AsyncConnection, found: Collection[GroupKey]) -> list[DecidedGroup]:
    """Open groups among `found` that are complete or have a failed member, in order."""
    return [
        DecidedGroup(
            EndedGroup(row.task, row.number, row.charged_tokens, row.prompt_tokens, row.sampled_tokens, row.env_ms),
            row.version,
            failure=row.failure,
        )
        for row in await _LOOK.run(connection, keys(found))
    ]


_MARK_READY = Statement(
    update(groups)
    .where(keyed(groups.c.task, groups.c.number), groups.c.state == GroupState.OPEN)
    .values(state=GroupState.READY, ready_at=func.now())
    .returning(groups.c.task, groups.c.number)
)


async def mark_ready(connection: AsyncConnection, found: Collection[GroupKey]) -> set[GroupKey]:
    """Mark those of the complete groups `found` that are still open as ready; returns them."""
    return {(row.task, row.number) for row in await _MARK_READY.run(connection, keys(found))}


_REFILLS = Statement(
    select(groups.c.task, groups.c.version, func.count().label("refills"))
    .where(keyed(groups.c.task, groups.c.version), in_state(groups.c.void_reason, VoidReason.ZERO_VARIANCE))
    .group_by(groups.c.task, groups.c.version)
)


async def refills_by_version(connection: AsyncConnection, versions: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Number of groups void for equal rewards, by (task, sampling version)."""
    found = await _REFILLS.run(connection, keys(versions))
    return {(row.task, row.version): row.refills for row in found}


class VoidedGroups(NamedTuple):
    """Groups that became void."""

    ended: list[EndedGroup]
    """Those that were open, with what they consumed."""
    complete: list[GroupKey]
    """Those whose consumption was recorded when they became ready."""


async def void_groups(connection: AsyncConnection, found: Collection[GroupKey], reason: VoidReason, detail: str = "") -> VoidedGroups:
    """Void live groups among `found`, and their unfinished members."""
    statement = (
        update(groups)
        .where(keyed(groups.c.task, groups.c.number), groups.c.state.in_(LIVE_GROUPS))
        .values(state=GroupState.VOID, void_reason=reason, detail=detail, ended_at=func.now())
        .returning(groups.c.task, groups.c.number, groups.c.charged_tokens, groups.c.ready_at)
    )
    voided = (await connection.execute(statement, keys(found))).all()
    if not voided:
        return VoidedGroups([], [])
    await connection.execute(
        update(trajectories)
        .where(
            keyed(trajectories.c.task, trajectories.c.group),
            trajectories.c.state.in_((TrajectoryState.OPEN, TrajectoryState.SCORED)),
        )
        .values(state=TrajectoryState.VOID, void_reason=reason, detail=detail),
        keys([(row.task, row.number) for row in voided]),
    )
    ended = await _ended(connection, [(row.task, row.number, row.charged_tokens) for row in voided if row.ready_at is None])
    return VoidedGroups(ended, [(row.task, row.number) for row in voided if row.ready_at is not None])


async def _ended(connection: AsyncConnection, rows: Sequence[tuple[str, int, float]]) -> list[EndedGroup]:
    """Groups of `rows` (task, number, charged), with what their members consumed."""
    if not rows:
        return []
    statement = (
        select(
            trajectories.c.task,
            trajectories.c.group,
            func.sum(trajectories.c.prompt_tokens),
            func.sum(trajectories.c.sampled_tokens),
            func.sum(trajectories.c.env_ms),
        )
        .where(keyed(trajectories.c.task, trajectories.c.group))
        .group_by(trajectories.c.task, trajectories.c.group)
    )
    ended = keys([(task, number) for task, number, _ in rows])
    spent = {(task, number): used for task, number, *used in (await connection.execute(statement, ended)).all()}
    return [EndedGroup(task, number, charged, *spent[task, number]) for task, number, charged in rows]


async def is_open(connection: AsyncConnection, key: GroupKey) -> bool:
    """Whether the group still waits for members."""
    task, number = key
    statement = select(groups.c.number).where(groups.c.task == task, groups.c.number == number, groups.c.state == GroupState.OPEN)
    return (await connection.execute(statement)).first() is not None


_VERSIONS = Statement(
    union_all(
        select(groups.c.task, groups.c.number, groups.c.version).where(keyed(groups.c.task, groups.c.number)),
        select(evaluation_groups.c.task, evaluation_groups.c.number, evaluation_groups.c.version).where(
            keyed(evaluation_groups.c.task, evaluation_groups.c.number)
        ),
    )
)


async def versions_of(connection: AsyncConnection, found: Collection[GroupKey]) -> dict[GroupKey, int]:
    """Versions that sample the groups, those of evaluations included; unknown groups are absent."""
    return {(row.task, row.number): row.version for row in await _VERSIONS.run(connection, keys(found))}


async def live_group_keys(connection: AsyncConnection, task: str) -> list[GroupKey]:
    statement = select(groups.c.task, groups.c.number).where(groups.c.task == task, groups.c.state.in_(LIVE_GROUPS))
    return [(row.task, row.number) for row in (await connection.execute(statement)).all()]


_at = Rows("at", task=Text, version=Integer)
_with_trainer = select(literal(1)).where(steps.c.task == _at.c.task, steps.c.version == _at.c.version).exists()
_UNBATCHED = Statement(
    select(groups.c.task, groups.c.number, groups.c.version, groups.c.state).where(
        groups.c.task == _at.c.task, in_state(groups.c.state, GroupState.OPEN, GroupState.READY), not_(_with_trainer)
    )
)


async def unbatched_groups(connection: AsyncConnection, versions: Mapping[str, int]) -> dict[str, list[LiveGroup]]:
    """Open and ready groups of these tasks, given with their versions; none for a task whose next step is with the trainer."""
    found: dict[str, list[LiveGroup]] = {task: [] for task in versions}
    for row in await _UNBATCHED.run(connection, _at.of(list(versions.items()))):
        found[row.task].append(LiveGroup(row.number, row.version, row.state == GroupState.READY))
    return found


async def ready_groups(connection: AsyncConnection) -> dict[str, int]:
    """Number of ready groups of each task; tasks without any are absent."""
    statement = select(groups.c.task, func.count().label("ready")).where(in_state(groups.c.state, GroupState.READY)).group_by(groups.c.task)
    return {row.task: row.ready for row in (await connection.execute(statement)).all()}


async def last_sequence(connection: AsyncConnection) -> int:
    """Highest sequence of a settled scored message."""
    return int((await connection.execute(select(func.coalesce(func.max(trajectories.c.sequence), 0)))).scalar_one())
