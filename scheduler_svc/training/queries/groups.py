"""Queries on groups and trajectories."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import CTE, BigInteger, DateTime, Double, Integer, Text, and_, case, delete, func, literal, not_, select, update
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import AdapterRef
from scheduler_svc.base.sql import GroupKey, Rows, Statement, given, in_state, keyed, keys
from scheduler_svc.base.states import GroupState, TrajectoryState, VoidReason
from scheduler_svc.base.tables import IN_TRAINING, groups, steps, trajectories
from scheduler_svc.training.decisions.batching import LiveGroup

LIVE_GROUPS = (GroupState.OPEN, GroupState.READY, GroupState.BATCHED)


@dataclass(frozen=True)
class NewGroup:
    """A group to open."""

    task: str
    number: int
    version: int
    row: int
    seed: int
    size: int
    charged_tokens: float
    deadline_at: datetime
    """Deadline on the pool's clock, which services use; `admitted_at` is on PostgreSQL's clock."""
    adapter: AdapterRef | None
    """Adapter of `version`; None: the base model itself."""
    parked_ms: int = 0
    """Total milliseconds for which the pool had been parked when the group was admitted."""
    protocol: str | None = None
    """Protocol of the group's evaluation; None in training."""


@dataclass(frozen=True)
class EndedGroup:
    """Consumption of a group that became ready or void, or of an evaluation group that ended."""

    task: str
    number: int
    version: int
    charged_tokens: float
    prompt_tokens: int
    sampled_tokens: int
    env_ms: int

    @property
    def key(self) -> GroupKey:
        return self.task, self.number

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.sampled_tokens


@dataclass(frozen=True)
class DecidedGroup:
    """An open group whose outcome is known: no member is open, or, in training, a member failed."""

    group: EndedGroup
    failure: str | None
    """Failure of a failed member, the first in text order; None if no member failed, and in evaluations."""


_new = Rows(
    "new",
    task=Text,
    number=Integer,
    version=Integer,
    size=Integer,
    row=BigInteger,
    seed=BigInteger,
    charged_tokens=Double,
    deadline_at=DateTime(timezone=True),
    parked_ms=BigInteger,
)
_group = {**_new.c, "state": literal(GroupState.OPEN.value)}
_written = (
    insert(groups)
    .from_select(list(_group), select(*_group.values()))
    .returning(groups.c.task, groups.c.number, groups.c.size)
    .cte("written")
)


def members_of(opened: CTE) -> Insert:
    """Statement that inserts open members of the groups in `opened`; existing members stay."""
    member = {
        "task": opened.c.task,
        "group": opened.c.number,
        "member": func.generate_series(0, opened.c.size - 1),
        "state": literal(TrajectoryState.OPEN.value),
    }
    return insert(trajectories).from_select(list(member), select(*member.values())).on_conflict_do_nothing()


_ADD = Statement(members_of(_written))


async def add_groups(connection: AsyncConnection, new: Sequence[NewGroup]) -> None:
    """Insert groups as open, with all their members."""
    if new:
        rows = [tuple(getattr(group, column.name) for column in _new.c) for group in new]
        await _ADD.run(connection, _new.of(rows))


_is_void = trajectories.c.state == TrajectoryState.VOID
_LOOK = Statement(
    select(
        groups.c.task,
        groups.c.number,
        groups.c.version,
        groups.c.charged_tokens,
        func.sum(trajectories.c.prompt_tokens).label("prompt_tokens"),
        func.sum(trajectories.c.sampled_tokens).label("sampled_tokens"),
        func.sum(trajectories.c.env_ms).label("env_ms"),
        func.min(case((and_(IN_TRAINING, _is_void), trajectories.c.detail))).label("failure"),
    )
    .join(trajectories, and_(trajectories.c.task == groups.c.task, trajectories.c.group == groups.c.number))
    .where(keyed(groups.c.task, groups.c.number), groups.c.state == GroupState.OPEN)
    .group_by(groups.c.task, groups.c.number)
    .having(func.bool_and(trajectories.c.state != TrajectoryState.OPEN) | (IN_TRAINING & func.bool_or(_is_void)))
    .order_by(groups.c.task, groups.c.number)
)


async def groups_to_end(connection: AsyncConnection, found: Collection[GroupKey]) -> list[DecidedGroup]:
    """Open groups among `found` that are complete or, in training, have a failed member, in order."""
    return [
        DecidedGroup(
            EndedGroup(row.task, row.number, row.version, row.charged_tokens, row.prompt_tokens, row.sampled_tokens, row.env_ms),
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
    """Mark the groups among `found` that are still open as ready; returns the marked groups."""
    return {(row.task, row.number) for row in await _MARK_READY.run(connection, keys(found))}


_REFILLS = Statement(
    select(groups.c.task, groups.c.version, func.count().label("refills"))
    .where(keyed(groups.c.task, groups.c.version), in_state(groups.c.void_reason, VoidReason.ZERO_VARIANCE))
    .group_by(groups.c.task, groups.c.version)
)


async def refills_by_version(connection: AsyncConnection, versions: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Number of refilled groups, which are void because of equal rewards, by (task, sampling version)."""
    found = await _REFILLS.run(connection, keys(versions))
    return {(row.task, row.version): row.refills for row in found}


class VoidedGroups(NamedTuple):
    """Groups that `void_groups` voided."""

    ended: list[EndedGroup]
    """Groups that were open, with their consumption."""
    complete: list[GroupKey]
    """Groups whose consumption was recorded when they became ready."""


async def void_groups(connection: AsyncConnection, found: Collection[GroupKey], reason: VoidReason, detail: str = "") -> VoidedGroups:
    """Void live groups among `found`, and their unfinished members."""
    statement = (
        update(groups)
        .where(keyed(groups.c.task, groups.c.number), groups.c.state.in_(LIVE_GROUPS))
        .values(state=GroupState.VOID, void_reason=reason, detail=detail, ended_at=func.now())
        .returning(groups.c.task, groups.c.number, groups.c.version, groups.c.charged_tokens, groups.c.ready_at)
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
    ended = await _with_tokens(connection, [row for row in voided if row.ready_at is None])
    return VoidedGroups(ended, [(row.task, row.number) for row in voided if row.ready_at is not None])


_ENDED = (
    update(groups)
    .where(keyed(groups.c.task, groups.c.number), in_state(groups.c.state, GroupState.PLANNED, GroupState.OPEN))
    .values(state=GroupState.ENDED, detail=given("with_detail"), ended_at=func.now())
    .returning(groups.c.task, groups.c.number, groups.c.version, groups.c.charged_tokens)
)
_MISSING = delete(trajectories).where(
    keyed(trajectories.c.task, trajectories.c.group), in_state(trajectories.c.state, TrajectoryState.OPEN)
)


async def end_groups(connection: AsyncConnection, found: Collection[GroupKey], detail: str = "") -> list[EndedGroup]:
    """End planned and open evaluation groups among `found`. With a `detail`, open members are deleted, and so count as missing attempts."""
    rows = (await connection.execute(_ENDED, {**keys(found), "with_detail": detail})).all() if found else []
    if rows and detail:
        await connection.execute(_MISSING, keys([(row.task, row.number) for row in rows]))
    return await _with_tokens(connection, rows)


async def _with_tokens(connection: AsyncConnection, rows: Sequence[Any]) -> list[EndedGroup]:
    """Groups of `rows` (task, number, version, charged_tokens) with the summed consumption of their members."""
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
    ended = keys([(row.task, row.number) for row in rows])
    spent = {(task, number): used for task, number, *used in (await connection.execute(statement, ended)).all()}
    nothing = (0, 0, 0)
    return [EndedGroup(row.task, row.number, row.version, row.charged_tokens, *spent.get((row.task, row.number), nothing)) for row in rows]


async def is_open(connection: AsyncConnection, key: GroupKey) -> bool:
    """Whether the group is open."""
    task, number = key
    statement = select(groups.c.number).where(groups.c.task == task, groups.c.number == number, groups.c.state == GroupState.OPEN)
    return (await connection.execute(statement)).first() is not None


_VERSIONS = Statement(select(groups.c.task, groups.c.number, groups.c.version).where(keyed(groups.c.task, groups.c.number)))


async def versions_of(connection: AsyncConnection, found: Collection[GroupKey]) -> dict[GroupKey, int]:
    """Sampling version by group; unknown groups are absent."""
    return {(row.task, row.number): row.version for row in await _VERSIONS.run(connection, keys(found))}


async def live_group_keys(connection: AsyncConnection, task: str) -> list[GroupKey]:
    """Keys of the task's open, ready and batched training groups."""
    statement = select(groups.c.task, groups.c.number).where(groups.c.task == task, IN_TRAINING, groups.c.state.in_(LIVE_GROUPS))
    return [(row.task, row.number) for row in (await connection.execute(statement)).all()]


_at = Rows("at", task=Text, version=Integer)
_with_trainer = select(literal(1)).where(steps.c.task == _at.c.task, steps.c.version == _at.c.version).exists()
_UNBATCHED = Statement(
    select(groups.c.task, groups.c.number, groups.c.version, groups.c.state).where(
        groups.c.task == _at.c.task,
        IN_TRAINING,
        in_state(groups.c.state, GroupState.OPEN, GroupState.READY),
        not_(_with_trainer),
    )
)


async def unbatched_groups(connection: AsyncConnection, versions: Mapping[str, int]) -> dict[str, list[LiveGroup]]:
    """Open and ready groups by task, for `versions` (task → version); empty for a task whose next step is at the trainer."""
    found: dict[str, list[LiveGroup]] = {task: [] for task in versions}
    for row in await _UNBATCHED.run(connection, _at.of(list(versions.items()))):
        found[row.task].append(LiveGroup(row.number, row.version, row.state == GroupState.READY))
    return found


async def ready_groups(connection: AsyncConnection) -> dict[str, int]:
    """Number of ready groups by task; tasks without any are absent."""
    statement = select(groups.c.task, func.count().label("ready")).where(in_state(groups.c.state, GroupState.READY)).group_by(groups.c.task)
    return {row.task: row.ready for row in (await connection.execute(statement)).all()}


async def last_sequence(connection: AsyncConnection) -> int:
    """Highest stream sequence of a settled scored message; 0 if there is none."""
    return int((await connection.execute(select(func.coalesce(func.max(trajectories.c.sequence), 0)))).scalar_one())
