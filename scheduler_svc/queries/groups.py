"""Sentences about groups and trajectories."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Double,
    Integer,
    Text,
    and_,
    case,
    func,
    literal,
    not_,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import SettledMember
from scheduler_svc.admission import InFlight
from scheduler_svc.batching import LiveGroup
from scheduler_svc.states import GroupState, StepState, TrajectoryState, VoidReason
from scheduler_svc.tables import groups, steps, tasks, trajectories

GroupKey = tuple[str, int]
"""(task, number)"""

CLOCKS_MAY_DIFFER_S = 5.0
"""More than this into the future, and a clock was put back."""
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
    """On NATS's clock, as services see it; `admitted_at` is PostgreSQL's."""


@dataclass(frozen=True)
class ScoredMember:
    """One member's outcome, as it arrived."""

    task: str
    group: int
    sequence: int
    member: SettledMember


@dataclass(frozen=True)
class EndedGroup:
    """A group that became ready or void, with what it consumed."""

    task: str
    number: int
    charged_tokens: float
    prompt_tokens: int
    sampled_tokens: int


async def add_groups(connection: AsyncConnection, new: Sequence[NewGroup]) -> None:
    """Write groups with all their members, open; two statements, however many."""
    if not new:
        return
    rows = [
        {
            "task": group.task,
            "number": group.number,
            "version": group.version,
            "state": GroupState.OPEN,
            "row": group.row,
            "seed": group.seed,
            "charged_tokens": group.charged_tokens,
            "deadline_at": group.deadline_at,
        }
        for group in new
    ]
    await connection.execute(insert(groups).returning(groups.c.number), rows)  # without `returning`, one statement a row
    each = func.generate_series(0, tasks.c.group_size - 1)
    members = (
        select(groups.c.task, groups.c.number, each, literal(TrajectoryState.OPEN.value))
        .join(tasks, tasks.c.id == groups.c.task)
        .where(tuple_(groups.c.task, groups.c.number).in_([(group.task, group.number) for group in new]))
    )
    await connection.execute(insert(trajectories).from_select(["task", "group", "member", "state"], members))


async def lock_groups(connection: AsyncConnection, keys: Collection[GroupKey]) -> None:
    """Hold the groups until the transaction ends, so that two replicas cannot each miss the other's last member."""
    statement = select(groups.c.number).where(tuple_(groups.c.task, groups.c.number).in_(sorted(keys)))
    await connection.execute(statement.order_by(groups.c.task, groups.c.number).with_for_update())


async def lock_open_group(connection: AsyncConnection, key: GroupKey) -> bool:
    """Whether the group is open; then it is held until the transaction ends, as by `lock_groups`."""
    task, number = key
    statement = select(groups.c.number).where(groups.c.task == task, groups.c.number == number, groups.c.state == GroupState.OPEN)
    return (await connection.execute(statement.with_for_update())).first() is not None


async def settle_members(connection: AsyncConnection, outcomes: Sequence[ScoredMember]) -> None:
    """Open members become scored, or void where they failed. The first message about a member wins."""
    first: dict[tuple[str, int, int], ScoredMember] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.sequence):
        first.setdefault((outcome.task, outcome.group, outcome.member.member), outcome)
    rows = list(first.values())
    arrived = (
        func.unnest(
            literal([row.task for row in rows], ARRAY(Text)),
            literal([row.group for row in rows], ARRAY(Integer)),
            literal([row.member.member for row in rows], ARRAY(Integer)),
            literal([row.sequence for row in rows], ARRAY(BigInteger)),
            literal([row.member.reward for row in rows], ARRAY(Double)),
            literal([row.member.prompt_tokens for row in rows], ARRAY(Integer)),
            literal([row.member.sampled_tokens for row in rows], ARRAY(Integer)),
            literal([row.member.turns for row in rows], ARRAY(Integer)),
            literal([row.member.truncated for row in rows], ARRAY(Boolean)),
            literal([row.member.failure for row in rows], ARRAY(Text)),
        )
        .table_valued(
            "task",
            "group",
            "member",
            "sequence",
            "reward",
            "prompt_tokens",
            "sampled_tokens",
            "turns",
            "truncated",
            "failure",
            name="arrived",
        )
        .render_derived()
    )
    failed = arrived.c.failure.is_not(None)
    await connection.execute(
        update(trajectories)
        .where(
            trajectories.c.task == arrived.c.task,
            trajectories.c.group == arrived.c.group,
            trajectories.c.member == arrived.c.member,
            trajectories.c.state == TrajectoryState.OPEN,
        )
        .values(
            state=case((failed, TrajectoryState.VOID.value), else_=TrajectoryState.SCORED.value),
            void_reason=case((failed, VoidReason.FAILED.value)),
            detail=func.coalesce(arrived.c.failure, ""),
            reward=case((not_(failed), arrived.c.reward)),
            sequence=arrived.c.sequence,
            prompt_tokens=arrived.c.prompt_tokens,
            sampled_tokens=arrived.c.sampled_tokens,
            turns=arrived.c.turns,
            truncated=arrived.c.truncated,
            scored_at=func.now(),
        )
    )


async def mark_ready(connection: AsyncConnection, keys: Collection[GroupKey]) -> list[EndedGroup]:
    """Open groups among `keys` whose every member is scored become ready."""
    unfinished = select(trajectories.c.member).where(
        trajectories.c.task == groups.c.task,
        trajectories.c.group == groups.c.number,
        trajectories.c.state != TrajectoryState.SCORED,
    )
    statement = (
        update(groups)
        .where(tuple_(groups.c.task, groups.c.number).in_(sorted(keys)), groups.c.state == GroupState.OPEN, ~unfinished.exists())
        .values(state=GroupState.READY, ready_at=func.now())
        .returning(groups.c.task, groups.c.number, groups.c.charged_tokens)
    )
    return await _ended(connection, (await connection.execute(statement)).all())


async def groups_with_failures(connection: AsyncConnection, keys: Collection[GroupKey]) -> dict[GroupKey, str]:
    """Open groups among `keys` of which a member failed, with the first failure's text."""
    statement = (
        select(groups.c.task, groups.c.number, func.min(trajectories.c.detail))
        .join(trajectories, and_(trajectories.c.task == groups.c.task, trajectories.c.group == groups.c.number))
        .where(
            tuple_(groups.c.task, groups.c.number).in_(sorted(keys)),
            groups.c.state == GroupState.OPEN,
            trajectories.c.state == TrajectoryState.VOID,
        )
        .group_by(groups.c.task, groups.c.number)
    )
    return {(task, number): detail for task, number, detail in (await connection.execute(statement)).all()}


async def groups_with_equal_rewards(connection: AsyncConnection, keys: Collection[GroupKey]) -> list[tuple[str, int, int]]:
    """Open groups among `keys` of which every member is scored, all with the same reward: (task, number, version), in order."""
    if not keys:
        return []
    statement = (
        select(groups.c.task, groups.c.number, groups.c.version)
        .join(trajectories, and_(trajectories.c.task == groups.c.task, trajectories.c.group == groups.c.number))
        .where(tuple_(groups.c.task, groups.c.number).in_(sorted(keys)), groups.c.state == GroupState.OPEN)
        .group_by(groups.c.task, groups.c.number, groups.c.version)
        .having(
            func.bool_and(trajectories.c.state == TrajectoryState.SCORED),
            func.min(trajectories.c.reward) == func.max(trajectories.c.reward),
        )
        .order_by(groups.c.task, groups.c.number)
    )
    return [(task, number, version) for task, number, version in (await connection.execute(statement)).all()]


async def refills_by_version(connection: AsyncConnection, ids: Collection[str]) -> dict[tuple[str, int], int]:
    """Groups of these tasks that were void for equal rewards, by (task, version that sampled them)."""
    statement = (
        select(groups.c.task, groups.c.version, func.count())
        .where(groups.c.task.in_(sorted(ids)), groups.c.void_reason == VoidReason.ZERO_VARIANCE.value)
        .group_by(groups.c.task, groups.c.version)
    )
    return {(task, version): count for task, version, count in (await connection.execute(statement)).all()}


async def void_groups(connection: AsyncConnection, keys: Collection[GroupKey], reason: VoidReason, detail: str = "") -> list[EndedGroup]:
    """Live groups among `keys`, and their unfinished members, become void."""
    statement = (
        update(groups)
        .where(tuple_(groups.c.task, groups.c.number).in_(sorted(keys)), groups.c.state.in_(LIVE_GROUPS))
        .values(state=GroupState.VOID, void_reason=reason, detail=detail, ended_at=func.now())
        .returning(groups.c.task, groups.c.number, groups.c.charged_tokens, groups.c.ready_at)
    )
    voided = (await connection.execute(statement)).all()
    if not voided:
        return []
    await connection.execute(
        update(trajectories)
        .where(
            tuple_(trajectories.c.task, trajectories.c.group).in_([(row.task, row.number) for row in voided]),
            trajectories.c.state.in_((TrajectoryState.OPEN, TrajectoryState.SCORED)),
        )
        .values(state=TrajectoryState.VOID, void_reason=reason, detail=detail)
    )
    return await _ended(connection, [(row.task, row.number, row.charged_tokens) for row in voided if row.ready_at is None])


async def _ended(connection: AsyncConnection, rows: Sequence[tuple[str, int, float]]) -> list[EndedGroup]:
    """The groups of `rows` (task, number, charged) with what their members consumed."""
    if not rows:
        return []
    statement = (
        select(
            trajectories.c.task,
            trajectories.c.group,
            func.sum(trajectories.c.prompt_tokens),
            func.sum(trajectories.c.sampled_tokens),
        )
        .where(tuple_(trajectories.c.task, trajectories.c.group).in_([(task, number) for task, number, _ in rows]))
        .group_by(trajectories.c.task, trajectories.c.group)
    )
    spent = {(task, number): (prompt, sampled) for task, number, prompt, sampled in (await connection.execute(statement)).all()}
    return [EndedGroup(task, number, charged, *spent[task, number]) for task, number, charged in rows]


async def voided_since_last_step(connection: AsyncConnection, task: str) -> dict[str, int]:
    """Groups that ended void since the task's last trained step, by reason."""
    last = select(func.max(steps.c.trained_at)).where(steps.c.task == task, steps.c.state == StepState.TRAINED).scalar_subquery()
    statement = (
        select(groups.c.void_reason, func.count().label("voided"))
        .where(groups.c.task == task, groups.c.state == GroupState.VOID, or_(last.is_(None), groups.c.ended_at > last))
        .group_by(groups.c.void_reason)
    )
    return {row.void_reason: row.voided for row in (await connection.execute(statement)).all()}


async def live_group_keys(connection: AsyncConnection, task: str) -> list[GroupKey]:
    statement = select(groups.c.task, groups.c.number).where(groups.c.task == task, groups.c.state.in_(LIVE_GROUPS))
    return [(row.task, row.number) for row in (await connection.execute(statement)).all()]


async def unbatched_groups(connection: AsyncConnection, task: str, version: int) -> list[LiveGroup]:
    """The task's open and ready groups; none while the step from `version` is with the trainer."""
    with_trainer = select(literal(1)).where(steps.c.task == task, steps.c.version == version).exists()
    statement = select(groups.c.number, groups.c.version, groups.c.state).where(
        groups.c.task == task, groups.c.state.in_((GroupState.OPEN, GroupState.READY)), not_(with_trainer)
    )
    return [LiveGroup(row.number, row.version, row.state == GroupState.READY) for row in (await connection.execute(statement)).all()]


async def ready_groups(connection: AsyncConnection) -> dict[str, int]:
    """How many groups of each task wait to be trained; tasks without any are absent."""
    statement = select(groups.c.task, func.count().label("ready")).where(groups.c.state == GroupState.READY).group_by(groups.c.task)
    return {row.task: row.ready for row in (await connection.execute(statement)).all()}


async def overdue_groups(connection: AsyncConnection, now_s: float) -> list[GroupKey]:
    """Open groups whose time is over by NATS's clock, where it is `now_s`, and by PostgreSQL's.

    Of two clocks that would both have to be wrong, one that jumps ahead makes nothing overdue. By one that was put back
    the time is over as well, so that the other decides.
    """
    timeout = func.make_interval(0, 0, 0, 0, 0, 0, tasks.c.spec["limits"]["episode_timeout_s"].as_float())
    now, back = func.to_timestamp(now_s), func.make_interval(0, 0, 0, 0, 0, 0, CLOCKS_MAY_DIFFER_S)
    statement = (
        select(groups.c.task, groups.c.number)
        .join(tasks, tasks.c.id == groups.c.task)
        .where(
            groups.c.state == GroupState.OPEN,
            not_(groups.c.deadline_at.between(now, now + timeout + back)),
            not_(groups.c.admitted_at.between(func.now() - timeout, func.now() + back)),
        )
    )
    return [(row.task, row.number) for row in (await connection.execute(statement)).all()]


async def last_sequence(connection: AsyncConnection) -> int:
    """The highest sequence of a scored message that ever counted."""
    return int((await connection.execute(select(func.coalesce(func.max(trajectories.c.sequence), 0)))).scalar_one())


async def work_in_flight(connection: AsyncConnection) -> dict[str, InFlight]:
    """Per pool: open members, and the tokens that they may still come to."""
    statement = (
        select(tasks.c.pool, func.count(), func.sum(tasks.c.trajectory_tokens))
        .join(trajectories, trajectories.c.task == tasks.c.id)
        .where(trajectories.c.state == TrajectoryState.OPEN)
        .group_by(tasks.c.pool)
    )
    return {pool: InFlight(count, float(tokens)) for pool, count, tokens in (await connection.execute(statement)).all()}
