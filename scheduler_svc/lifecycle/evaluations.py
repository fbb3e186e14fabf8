"""The life of an evaluation: planned when its version is trained, opened group by group as fairness allows, told when all
of it has ended. A task's last evaluation, or one that reaches its target, ends the task."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from pydantic import JsonValue
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.decisions.evaluation_plan import (
    AGAIN,
    Result,
    first_group,
    is_due,
    may_be_planned_again,
    result_of,
)
from scheduler_svc.lifecycle.accounting import charge_evaluation
from scheduler_svc.lifecycle.group_messages import open_evaluation_group
from scheduler_svc.lifecycle.task_events import announce
from scheduler_svc.lifecycle.termination import end_task
from scheduler_svc.store.queries import evaluations, shares, tasks
from scheduler_svc.store.queries.evaluations import EndedGroup, Outcome
from scheduler_svc.store.queries.outbox import OutboxMessage
from scheduler_svc.store.queries.progress import progress_of
from scheduler_svc.store.queries.shares import Charge
from scheduler_svc.store.queries.sql.parameters import GroupKey
from scheduler_svc.store.queries.tasks import Task
from scheduler_svc.store.states import TaskState


async def plan(connection: AsyncConnection, task: Task) -> None:
    """Plan the evaluation of the task's version, where one is due."""
    if not is_due(task.spec, task.version):
        return
    first = first_group(task.spec, await evaluations.count(connection, task.id))
    wanted = task.spec.evaluation
    numbers = range(first, first + wanted.prompts)
    await evaluations.add(connection, task.id, task.version, task.adapter or task.start, numbers, size=wanted.attempts)


async def open_group(connection: AsyncConnection, task: Task, charged_tokens: float, now_s: float) -> list[OutboxMessage]:
    """The message that opens the running task's next planned group, charged so much; none when no group waits any more."""
    deadline_s = now_s + task.spec.limits.episode_timeout_s
    deadline_at = datetime.fromtimestamp(deadline_s, UTC)
    opened = await evaluations.open_first_group(connection, task.id, charged_tokens=charged_tokens, deadline_at=deadline_at)
    if opened is None:
        return []
    await shares.charge(connection, [Charge(task.id, task.tenant, charged_tokens)])
    return [open_evaluation_group(task, opened, deadline_s)]


async def settle(connection: AsyncConnection, by_id: dict[str, Task], outcomes: Sequence[Outcome]) -> None:
    """Note what arrived of the tasks `by_id`, which are locked, and finish what is complete."""
    if outcomes:
        await evaluations.settle_members(connection, outcomes)
        keys = {(outcome.task, outcome.group) for outcome in outcomes}
        await _ended(connection, by_id, await evaluations.end_complete_groups(connection, keys))


async def give_up(connection: AsyncConnection, by_id: dict[str, Task], keys: Collection[GroupKey], detail: str) -> None:
    """Groups that will not be finished end as they are: their attempts count as failed, and nothing is refilled."""
    await _ended(connection, by_id, await evaluations.give_up_groups(connection, keys, detail))


async def end_overdue(connection: AsyncConnection, by_id: dict[str, Task], overdue: Collection[GroupKey], *, calm_s: float) -> None:
    """Open groups past their deadlines are given up; where they had longer than the `calm_s` that nothing was disturbed
    (`maintenance/stability.py`), they are planned again, a few times."""
    disturbed = {task.id for task in by_id.values() if calm_s < task.spec.limits.episode_timeout_s}
    again = {(task, number) for task, number in overdue if task in disturbed and may_be_planned_again(number)}
    charged = await evaluations.plan_again(connection, again, add=AGAIN)
    await shares.charge(connection, [Charge(task, by_id[task].tenant, -tokens) for task, tokens in charged.items()])
    await give_up(connection, by_id, set(overdue) - again, "was not finished before limits.episode_timeout_s")


async def finish_if_done(connection: AsyncConnection, task: Task) -> bool:
    """End a task that has trained every step, unless an evaluation is under way."""
    if task.version < task.spec.steps or await evaluations.is_running(connection, task.id):
        return False
    progress = await progress_of(connection, task.id)
    return await end_task(connection, task, TaskState.FINISHED, data={"version": task.version, "reward": progress.reward})


async def _ended(connection: AsyncConnection, by_id: dict[str, Task], ended: Sequence[EndedGroup]) -> None:
    await charge_evaluation(connection, by_id, ended)
    for task, version in await evaluations.complete(connection, {(group.task, group.version) for group in ended}):
        await _finish(connection, by_id[task], version)


async def _finish(connection: AsyncConnection, task: Task, version: int) -> None:
    """Tell the result. The task may have ended with an earlier one, in which case there is nothing left to tell."""
    current = (await tasks.lock_tasks(connection, [task.id]))[0]
    if not current.is_live:
        return
    result = result_of(await evaluations.attempts_of(connection, task.id, version), task.spec.evaluation)
    told = _told(result)
    planned_at, finished_at = await evaluations.finish(connection, task.id, version, result.reward, dict(told))
    failure = await evaluations.first_failure(connection, task.id, version) if result.failed_share else ""
    data: dict[str, JsonValue] = {"version": version, **told, "took_s": (finished_at - planned_at).total_seconds()}
    announce(connection, task.tenant, task.id, "evaluation", data | ({"failure": failure} if failure else {}))
    target = task.spec.stop.reward
    if target is not None and result.reward is not None and result.reward >= target:
        reason = f"stop.reward: version {version} was evaluated at {result.reward:.4g}, the target is {target:g}"
        data = {"version": current.version, "reward": result.reward, "reason": reason}
        await end_task(connection, current, TaskState.FINISHED, reason=reason, data=data)
    else:
        await finish_if_done(connection, current)


def _told(result: Result) -> dict[str, JsonValue]:
    told: dict[str, JsonValue] = asdict(result)
    told["pass_at"] = {str(k): value for k, value in result.pass_at.items()}
    return told
