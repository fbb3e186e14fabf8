"""Queries on evaluations and their groups."""

from collections.abc import Collection, Sequence
from datetime import datetime

from pydantic import JsonValue
from sqlalchemy import ColumnElement, Table, and_, delete, distinct, func, literal, not_, null, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import AdapterRef, as_json, from_json
from common.spec import TaskSpec
from scheduler_svc.base.sql import GroupKey, in_state, keyed, keys
from scheduler_svc.base.states import EvaluationState, GroupState, TrajectoryState
from scheduler_svc.base.tables import IN_TRAINING, evaluations, groups, trajectories
from scheduler_svc.training.decisions.evaluation import Attempt, BestSoFar, PlannedGroups, prompt_of, prompt_seed, row_of
from scheduler_svc.training.queries.groups import NewGroup, members_of

EvaluationKey = tuple[str, int, str]
"""(task, version, protocol)"""
_NOT_OVER = and_(not_(IN_TRAINING), in_state(groups.c.state, GroupState.PLANNED, GroupState.OPEN))
"""Condition that an evaluation group is planned or open; its text is that of the partial index, so that PostgreSQL uses the index."""
_MEMBERS = and_(trajectories.c.task == groups.c.task, trajectories.c.group == groups.c.number)
"""Join condition of groups and their members."""


# --------------------------------------------------------------------------------------------------------------- plans


async def count(connection: AsyncConnection, task: str) -> int:
    """Number of the task's versions for which an evaluation was planned."""
    statement = select(func.count(distinct(evaluations.c.version))).where(evaluations.c.task == task)
    return int((await connection.execute(statement)).scalar_one())


async def add(connection: AsyncConnection, task: str, version: int, adapter: AdapterRef | None, planned: Sequence[PlannedGroups]) -> bool:
    """Plan an evaluation of `version` by these protocols; False if the version already has one."""
    row = {
        "task": task,
        "version": version,
        "state": EvaluationState.RUNNING,
        "adapter": as_json(adapter) if adapter else null(),
    }
    rows = [row | {"protocol": one.protocol.name} for one in planned]
    statement = insert(evaluations).values(rows).on_conflict_do_nothing().returning(evaluations.c.version)
    if (await connection.execute(statement)).first() is None:
        return False
    shared = {"task": task, "version": version, "state": GroupState.PLANNED, "charged_tokens": 0}
    await connection.execute(
        insert(groups),
        [
            {
                **shared,
                "protocol": one.protocol.name,
                "size": one.protocol.attempts,
                "number": number,
                "row": row_of(prompt),
                "seed": prompt_seed(one.protocol, prompt),
            }
            for one in planned
            for prompt, number in enumerate(one.numbers)
        ],
    )
    return True


async def open_first_group(connection: AsyncConnection, task: str, *, charged_tokens: float, deadline_at: datetime) -> NewGroup | None:
    """Open the task's first planned group and insert its missing members; None if no group is planned."""
    planned = (groups.c.task == task, not_(IN_TRAINING), in_state(groups.c.state, GroupState.PLANNED))
    first = select(func.min(groups.c.number)).where(*planned).scalar_subquery()
    opened = (
        update(groups)
        .where(groups.c.task == task, groups.c.number == first)
        .values(state=GroupState.OPEN, charged_tokens=charged_tokens, deadline_at=deadline_at, admitted_at=func.now())
        .returning(
            *(groups.c[name] for name in ("task", "number", "version", "protocol", "size", "row", "seed", "charged_tokens", "deadline_at"))
        )
        .cte("opened")
    )
    of_group = [opened.c[name] == evaluations.c[name] for name in ("task", "version", "protocol")]
    statement = select(*opened.c, evaluations.c.adapter).join(evaluations, and_(*of_group)).add_cte(members_of(opened).cte("added"))
    row = (await connection.execute(statement)).first()
    if row is None:
        return None
    opened_group = row._asdict()
    adapter = opened_group.pop("adapter")
    return NewGroup(**opened_group, adapter=from_json(AdapterRef, adapter) if adapter else None)


async def retry_groups(connection: AsyncConnection, found: Collection[GroupKey], *, add: int) -> dict[str, float]:
    """Return open groups among `found` to planned, with `add` added to their numbers; outcomes received so far are kept.

    Returns the tokens that the groups had been charged, by task.
    """
    if not found:
        return {}
    old, members = groups.c, trajectories.c
    kept = ("task", "version", "protocol", "size", "row", "seed")
    values = (*(old[name] for name in kept), old.number + add, literal(GroupState.PLANNED.value), literal(0.0))
    chosen = select(*values).where(keyed(old.task, old.number), old.state == GroupState.OPEN)
    moved = insert(groups).from_select([*kept, "number", "state", "charged_tokens"], chosen).returning(old.task, old.number)
    # Only the groups moved here: the rest ended after they were found overdue.
    among = keys([(row.task, row.number - add) for row in (await connection.execute(moved, keys(found))).all()])
    arrived = (keyed(members.task, members.group), members.state != TrajectoryState.OPEN)
    await connection.execute(update(trajectories).where(*arrived).values(group=members.group + add), among)
    gone = delete(groups).where(keyed(old.task, old.number)).returning(old.task, old.charged_tokens)
    charged: dict[str, float] = {}
    for row in (await connection.execute(gone, among)).all():
        charged[row.task] = charged.get(row.task, 0.0) + row.charged_tokens
    return charged


async def live_group_keys(connection: AsyncConnection, task: str) -> list[GroupKey]:
    statement = select(groups.c.task, groups.c.number).where(groups.c.task == task, _NOT_OVER)
    return [(row.task, row.number) for row in (await connection.execute(statement)).all()]


# ------------------------------------------------------------------------------------------------------------- results


async def complete(connection: AsyncConnection, found: Collection[tuple[str, int]]) -> list[EvaluationKey]:
    """Running evaluations among `found`, (task, version), whose groups have all ended; ordered."""
    of_evaluation = [groups.c[name] == evaluations.c[name] for name in ("task", "version", "protocol")]
    left = select(groups.c.number).where(*of_evaluation, _NOT_OVER)
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
    """Ended attempts of the evaluation, by prompt."""
    statement = (
        select(groups.c.row, trajectories.c.reward, trajectories.c.sampled_tokens, trajectories.c.truncated)
        .join(trajectories, _MEMBERS)
        .where(*_is(groups, evaluation))
        .order_by(groups.c.row, trajectories.c.member)
    )
    found: dict[int, list[Attempt]] = {}
    for row in (await connection.execute(statement)).all():
        found.setdefault(prompt_of(row.row), []).append(Attempt(row.reward, row.sampled_tokens, row.truncated))
    return found


async def first_failure(connection: AsyncConnection, evaluation: EvaluationKey) -> str:
    """Failure detail of one failed group or member, groups first; empty if none failed."""
    abandoned = select(groups.c.detail).where(*_is(groups, evaluation), groups.c.detail != "")
    failed = (
        select(trajectories.c.detail).join(groups, _MEMBERS).where(*_is(groups, evaluation), trajectories.c.state == TrajectoryState.VOID)
    )
    return (await connection.execute(abandoned.union_all(failed).limit(1))).scalar() or ""


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


async def latest_standing(connection: AsyncConnection, task: str, protocol: str) -> BestSoFar | None:
    """Best version and evaluations since, as stored by the last finished evaluation; None before the first with a reward."""
    details = evaluations.c.results
    statement = (
        select(details["best_version"].as_integer().label("best"), details["without_gain"].as_integer().label("since"))
        .where(evaluations.c.task == task, evaluations.c.protocol == protocol, evaluations.c.state == EvaluationState.FINISHED)
        .where(details["best_version"].as_integer().is_not(None))
        .order_by(evaluations.c.finished_at.desc(), evaluations.c.version.desc())
        .limit(1)
    )
    row = (await connection.execute(statement)).first()
    return BestSoFar(row.best, row.since) if row else None


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
    """Versions under evaluation, and the `keep.best` best versions by the deciding protocol; earlier versions first on ties."""
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
