"""Queries on evaluations, their groups and members."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from pydantic import JsonValue
from sqlalchemy import ColumnElement, Table, and_, delete, distinct, func, literal, null, select, true, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import AdapterRef, SettledMember, as_json, from_json
from common.spec import TaskSpec
from scheduler_svc.decisions.evaluation.plan import PlannedGroups
from scheduler_svc.decisions.evaluation.results import Attempt, Standing
from scheduler_svc.store.queries.sql.parameters import GroupKey, in_state, keyed, keys
from scheduler_svc.store.states import EvaluationGroupState, EvaluationState
from scheduler_svc.store.tables import evaluation_groups, evaluation_members, evaluations

EvaluationKey = tuple[str, int, str]
"""(task, version, protocol)"""
_NOT_OVER = in_state(evaluation_groups.c.state, EvaluationGroupState.PLANNED, EvaluationGroupState.OPEN)
"""Condition in the words of the partial index, so that PostgreSQL uses it."""
_MEMBERS = and_(evaluation_members.c.task == evaluation_groups.c.task, evaluation_members.c.number == evaluation_groups.c.number)
"""Condition of the join of groups and their members."""


@dataclass(frozen=True)
class PlannedGroup:
    """A group of an evaluation that may be opened."""

    task: str
    number: int
    version: int
    protocol: str
    prompt: int
    adapter: AdapterRef | None


@dataclass(frozen=True)
class EvaluatedGroup:
    """A group that ended, with what it consumed."""

    task: str
    number: int
    version: int
    charged_tokens: float
    tokens: int
    env_ms: int


@dataclass(frozen=True)
class MemberOutcome:
    """Outcome of one member, as received."""

    task: str
    group: int
    member: SettledMember


# --------------------------------------------------------------------------------------------------------------- plans


async def count(connection: AsyncConnection, task: str) -> int:
    """Number of versions of the task that were ever evaluated."""
    statement = select(func.count(distinct(evaluations.c.version))).where(evaluations.c.task == task)
    return int((await connection.execute(statement)).scalar_one())


async def add(connection: AsyncConnection, task: str, version: int, adapter: AdapterRef | None, planned: Sequence[PlannedGroups]) -> bool:
    """Plan an evaluation by these protocols; False when this version has one."""
    row = {
        "task": task,
        "version": version,
        "state": EvaluationState.RUNNING,
        "adapter": as_json(adapter) if adapter else null(),
    }
    rows = [row | {"protocol": groups.protocol} for groups in planned]
    statement = insert(evaluations).values(rows).on_conflict_do_nothing().returning(evaluations.c.version)
    if (await connection.execute(statement)).first() is None:
        return False
    shared = {"task": task, "version": version, "state": EvaluationGroupState.PLANNED}
    await connection.execute(
        insert(evaluation_groups),
        [
            shared | {"protocol": groups.protocol, "size": groups.size, "number": number, "prompt": prompt}
            for groups in planned
            for prompt, number in enumerate(groups.numbers)
        ],
    )
    return True


async def open_first_group(connection: AsyncConnection, task: str, *, charged_tokens: float, deadline_at: datetime) -> PlannedGroup | None:
    """Open the task's first planned group; None when there is none."""
    first = (
        select(func.min(evaluation_groups.c.number))
        .where(evaluation_groups.c.task == task, in_state(evaluation_groups.c.state, EvaluationGroupState.PLANNED))
        .scalar_subquery()
    )
    opened = (
        update(evaluation_groups)
        .where(evaluation_groups.c.task == task, evaluation_groups.c.number == first)
        .values(state=EvaluationGroupState.OPEN, charged_tokens=charged_tokens, deadline_at=deadline_at)
        .returning(*(evaluation_groups.c[name] for name in ("number", "version", "protocol", "prompt")))
        .cte("opened")
    )
    of_group = (evaluations.c.task == task, evaluations.c.version == opened.c.version, evaluations.c.protocol == opened.c.protocol)
    statement = select(*opened.c, evaluations.c.adapter).join(evaluations, and_(*of_group))
    row = (await connection.execute(statement)).first()
    if row is None:
        return None
    adapter = from_json(AdapterRef, row.adapter) if row.adapter else None
    return PlannedGroup(task, row.number, row.version, row.protocol, row.prompt, adapter)


# ------------------------------------------------------------------------------------------------------------ outcomes


async def settle_members(connection: AsyncConnection, outcomes: Sequence[MemberOutcome]) -> None:
    """Record outcomes of members of open groups, and lock the groups. The first outcome of a member counts."""
    among = keys({(outcome.task, outcome.group) for outcome in outcomes})
    statement = (
        select(evaluation_groups.c.task, evaluation_groups.c.number)
        .where(keyed(evaluation_groups.c.task, evaluation_groups.c.number), evaluation_groups.c.state == EvaluationGroupState.OPEN)
        .order_by(evaluation_groups.c.task, evaluation_groups.c.number)
        .with_for_update()
    )
    live = {(row.task, row.number) for row in (await connection.execute(statement, among)).all()}
    rows = [
        {
            "task": outcome.task,
            "number": outcome.group,
            "member": outcome.member.member,
            "reward": None if outcome.member.failure else outcome.member.reward,
            "prompt_tokens": outcome.member.prompt_tokens,
            "sampled_tokens": outcome.member.sampled_tokens,
            "turns": outcome.member.turns,
            "truncated": outcome.member.truncated,
            "failure": outcome.member.failure,
            "env_ms": outcome.member.env_ms,
        }
        for outcome in outcomes
        if (outcome.task, outcome.group) in live
    ]
    if rows:
        await connection.execute(insert(evaluation_members).on_conflict_do_nothing(), rows)


async def end_complete_groups(connection: AsyncConnection, found: Collection[GroupKey]) -> list[EvaluatedGroup]:
    """End open groups among `found` whose members have all ended."""
    arrived = select(func.count()).where(_MEMBERS).scalar_subquery()
    return await _end(connection, found, arrived >= evaluation_groups.c.size, "")


async def retry_groups(connection: AsyncConnection, found: Collection[GroupKey], *, add: int) -> dict[str, float]:
    """Return open groups among `found` to planned, under numbers increased by `add`; outcomes received so far are kept.

    Returns the tokens that they had been charged, by task.
    """
    if not found:
        return {}
    old, new = evaluation_groups.c, evaluation_groups.c.number + add
    values = (old.task, new, old.version, old.protocol, old.prompt, old.size, literal(EvaluationGroupState.PLANNED.value))
    chosen = select(*values).where(keyed(old.task, old.number), old.state == EvaluationGroupState.OPEN)
    names = ["task", "number", "version", "protocol", "prompt", "size", "state"]
    moved = insert(evaluation_groups).from_select(names, chosen).returning(old.task, old.number)
    # Only these from here: others have ended since they were found late.
    among = keys([(row.task, row.number - add) for row in (await connection.execute(moved, keys(found))).all()])
    members = evaluation_members.c
    await connection.execute(
        update(evaluation_members).where(keyed(members.task, members.number)).values(number=members.number + add), among
    )
    gone = delete(evaluation_groups).where(keyed(old.task, old.number)).returning(old.task, old.charged_tokens)
    charged: dict[str, float] = {}
    for row in (await connection.execute(gone, among)).all():
        charged[row.task] = charged.get(row.task, 0.0) + row.charged_tokens
    return charged


async def abandon_groups(connection: AsyncConnection, found: Collection[GroupKey], detail: str) -> list[EvaluatedGroup]:
    """End unfinished groups among `found` as they are."""
    return await _end(connection, found, true(), detail)


async def _end(
    connection: AsyncConnection, found: Collection[GroupKey], condition: ColumnElement[bool], detail: str
) -> list[EvaluatedGroup]:
    if not found:
        return []
    statement = (
        update(evaluation_groups)
        .where(
            keyed(evaluation_groups.c.task, evaluation_groups.c.number),
            evaluation_groups.c.state != EvaluationGroupState.ENDED,
            condition,
        )
        .values(state=EvaluationGroupState.ENDED, detail=detail)
        .returning(evaluation_groups.c.task, evaluation_groups.c.number, evaluation_groups.c.version, evaluation_groups.c.charged_tokens)
    )
    rows = (await connection.execute(statement, keys(found))).all()
    if not rows:
        return []
    spent = (
        select(
            evaluation_members.c.task,
            evaluation_members.c.number,
            func.sum(evaluation_members.c.prompt_tokens + evaluation_members.c.sampled_tokens),
            func.sum(evaluation_members.c.env_ms),
        )
        .where(keyed(evaluation_members.c.task, evaluation_members.c.number))
        .group_by(evaluation_members.c.task, evaluation_members.c.number)
    )
    ended = keys([(row.task, row.number) for row in rows])
    found_spent = {(task, number): used for task, number, *used in (await connection.execute(spent, ended)).all()}
    return [
        EvaluatedGroup(row.task, row.number, row.version, row.charged_tokens, *found_spent.get((row.task, row.number), (0, 0)))
        for row in rows
    ]


async def live_group_keys(connection: AsyncConnection, task: str) -> list[GroupKey]:
    statement = select(evaluation_groups.c.task, evaluation_groups.c.number).where(evaluation_groups.c.task == task, _NOT_OVER)
    return [(row.task, row.number) for row in (await connection.execute(statement)).all()]


# ------------------------------------------------------------------------------------------------------------- results


async def complete(connection: AsyncConnection, found: Collection[tuple[str, int]]) -> list[EvaluationKey]:
    """Running evaluations among those of `found`, (task, version), whose groups have all ended; in order."""
    of_evaluation = [evaluation_groups.c[name] == evaluations.c[name] for name in ("task", "version", "protocol")]
    left = select(evaluation_groups.c.number).where(*of_evaluation, _NOT_OVER)
    statement = (
        select(evaluations.c.task, evaluations.c.version, evaluations.c.protocol)
        .where(
            keyed(evaluations.c.task, evaluations.c.version),
            evaluations.c.state == EvaluationState.RUNNING,
            ~left.exists(),
        )
        .order_by(evaluations.c.task, evaluations.c.version, evaluations.c.protocol)
    )
    return [(row.task, row.version, row.protocol) for row in (await connection.execute(statement, keys(found))).all()]


async def attempts_of(connection: AsyncConnection, evaluation: EvaluationKey) -> dict[int, list[Attempt]]:
    """Attempts that ended, by prompt."""
    statement = (
        select(evaluation_groups.c.prompt, evaluation_members.c.reward, evaluation_members.c.sampled_tokens, evaluation_members.c.truncated)
        .join(evaluation_members, _MEMBERS)
        .where(*_is(evaluation_groups, evaluation))
        .order_by(evaluation_groups.c.prompt, evaluation_members.c.member)
    )
    found: dict[int, list[Attempt]] = {}
    for row in (await connection.execute(statement)).all():
        found.setdefault(row.prompt, []).append(Attempt(row.reward, row.sampled_tokens, row.truncated))
    return found


async def first_failure(connection: AsyncConnection, evaluation: EvaluationKey) -> str:
    """Detail of the first group or member that failed; empty when none did."""
    groups = select(evaluation_groups.c.detail).where(*_is(evaluation_groups, evaluation), evaluation_groups.c.detail != "")
    members = (
        select(evaluation_members.c.failure)
        .join(evaluation_groups, _MEMBERS)
        .where(*_is(evaluation_groups, evaluation), evaluation_members.c.failure.is_not(None))
    )
    return (await connection.execute(groups.union_all(members).limit(1))).scalar() or ""


async def finish(
    connection: AsyncConnection, evaluation: EvaluationKey, reward: float | None, lower_bound: float | None, results: dict[str, JsonValue]
) -> tuple[datetime, datetime]:
    """Finish the running evaluation; returns when it was planned and when it finished."""
    statement = (
        update(evaluations)
        .where(*_is(evaluations, evaluation), evaluations.c.state == EvaluationState.RUNNING)
        .values(state=EvaluationState.FINISHED, reward=reward, lower_bound=lower_bound, results=results, finished_at=func.now())
        .returning(evaluations.c.planned_at, evaluations.c.finished_at)
    )
    row = (await connection.execute(statement)).one()
    return row.planned_at, row.finished_at


async def latest_standing(connection: AsyncConnection, task: str, protocol: str) -> Standing | None:
    """The best version and the evaluations since, as the last finished evaluation left them; None before the first with a reward."""
    details = evaluations.c.results
    statement = (
        select(details["best_version"].as_integer().label("best"), details["without_gain"].as_integer().label("since"))
        .where(evaluations.c.task == task, evaluations.c.protocol == protocol, evaluations.c.state == EvaluationState.FINISHED)
        .where(details["best_version"].as_integer().is_not(None))
        .order_by(evaluations.c.finished_at.desc(), evaluations.c.version.desc())
        .limit(1)
    )
    row = (await connection.execute(statement)).first()
    return Standing(row.best, row.since) if row else None


async def void_running(connection: AsyncConnection, task: str) -> None:
    """Void the running evaluations of an ended task."""
    await connection.execute(
        update(evaluations)
        .where(evaluations.c.task == task, evaluations.c.state == EvaluationState.RUNNING)
        .values(state=EvaluationState.VOID, finished_at=func.now())
    )


async def is_running(connection: AsyncConnection, task: str) -> bool:
    statement = select(evaluations.c.version).where(evaluations.c.task == task, evaluations.c.state == EvaluationState.RUNNING).limit(1)
    return (await connection.execute(statement)).first() is not None


async def is_finished(connection: AsyncConnection, evaluation: EvaluationKey) -> bool:
    statement = select(evaluations.c.version).where(*_is(evaluations, evaluation), evaluations.c.state == EvaluationState.FINISHED)
    return (await connection.execute(statement)).first() is not None


async def held_versions(connection: AsyncConnection, task: str, spec: TaskSpec) -> frozenset[int]:
    """Versions under evaluation, and the best ones by the protocol that decides; earlier versions first among equals."""
    of_task = (evaluations.c.task == task, evaluations.c.protocol == spec.evaluation.protocols[0].name)
    by_reward = (evaluations.c.reward.desc(), evaluations.c.version)
    running = select(evaluations.c.version).where(evaluations.c.task == task, evaluations.c.state == EvaluationState.RUNNING)
    finished = (
        select(evaluations.c.version)
        .where(*of_task, evaluations.c.state == EvaluationState.FINISHED, evaluations.c.reward.is_not(None))
        .order_by(*(() if spec.evaluation.decide_by == "mean" else (evaluations.c.lower_bound.desc().nulls_last(),)), *by_reward)
        .limit(spec.keep.best)
    )
    best = (await connection.execute(finished)).scalars() if spec.keep.best else ()
    return frozenset([*(await connection.execute(running)).scalars(), *best])


def _is(table: Table, evaluation: EvaluationKey) -> list[ColumnElement[bool]]:
    task, version, protocol = evaluation
    return [table.c.task == task, table.c.version == version, table.c.protocol == protocol]
