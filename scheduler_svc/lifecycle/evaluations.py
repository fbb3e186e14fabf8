"""Evaluations: planned when their version is trained, opened group by group as fairness allows, reported when all groups have ended.
A task's last evaluation, or one that reaches its target, ends the task."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from pydantic import JsonValue
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.decisions.evaluation_plan import (
    RETRY_INCREMENT,
    Result,
    first_group,
    is_due,
    may_be_retried,
    result_of,
)
from scheduler_svc.decisions.task_end import Evaluated, reason_to_finish
from scheduler_svc.lifecycle.accounting import charge_evaluation
from scheduler_svc.lifecycle.group_messages import open_evaluation_group
from scheduler_svc.lifecycle.termination import end_task
from scheduler_svc.store.queries import evaluations, shares, tasks
from scheduler_svc.store.queries.evaluations import EvaluatedGroup, MemberOutcome
from scheduler_svc.store.queries.progress import progress_of
from scheduler_svc.store.queries.shares import Charge
from scheduler_svc.store.queries.sql.parameters import GroupKey
from scheduler_svc.store.queries.tasks import Task
from scheduler_svc.store.states import TaskState
from scheduler_svc.store.transaction import OutboxMessage, Transaction


async def plan(connection: AsyncConnection, task: Task) -> None:
    """Plan the evaluation of the task's version, where one is due."""
    if not is_due(task.spec, task.version):
        return
    first = first_group(task.spec, await evaluations.count(connection, task.id))
    wanted = task.spec.evaluation
    numbers = range(first, first + wanted.prompts)
    await evaluations.add(connection, task.id, task.version, task.adapter or task.start, numbers, size=wanted.attempts)


async def open_group(connection: AsyncConnection, task: Task, charged_tokens: float, now_s: float) -> list[OutboxMessage]:
    """Open the running task's next planned group; returns its message, or none when no group is planned."""
    deadline_s = now_s + task.spec.limits.episode_timeout_s
    deadline_at = datetime.fromtimestamp(deadline_s, UTC)
    opened = await evaluations.open_first_group(connection, task.id, charged_tokens=charged_tokens, deadline_at=deadline_at)
    if opened is None:
        return []
    await shares.charge(connection, [Charge(task.id, task.tenant, charged_tokens)])
    return [open_evaluation_group(task, opened, deadline_s)]


async def settle(tx: Transaction, by_id: dict[str, Task], outcomes: Sequence[MemberOutcome]) -> None:
    """Settle outcomes of members of the locked tasks `by_id`, and finish complete evaluations."""
    if outcomes:
        await evaluations.settle_members(tx.connection, outcomes)
        keys = {(outcome.task, outcome.group) for outcome in outcomes}
        await _ended(tx, by_id, await evaluations.end_complete_groups(tx.connection, keys))


async def abandon(tx: Transaction, by_id: dict[str, Task], keys: Collection[GroupKey], detail: str) -> None:
    """End unfinished groups: missing attempts count as failed, and no group is refilled."""
    await _ended(tx, by_id, await evaluations.abandon_groups(tx.connection, keys, detail))


async def end_overdue(tx: Transaction, by_id: dict[str, Task], overdue: Collection[GroupKey], *, stable_for_s: float) -> None:
    """Abandon open groups past their deadlines; retry them, up to a limit, where they were opened before the last disturbance,
    `stable_for_s` ago (`maintenance/stability.py`)."""
    disturbed = {task.id for task in by_id.values() if stable_for_s < task.spec.limits.episode_timeout_s}
    retried = {(task, number) for task, number in overdue if task in disturbed and may_be_retried(number)}
    charged = await evaluations.retry_groups(tx.connection, retried, add=RETRY_INCREMENT)
    await shares.charge(tx.connection, [Charge(task, by_id[task].tenant, -tokens) for task, tokens in charged.items()])
    await abandon(tx, by_id, set(overdue) - retried, "was not finished before limits.episode_timeout_s")


async def finish_if_done(tx: Transaction, task: Task) -> bool:
    """End a task that has trained every step, unless an evaluation is running."""
    if task.version < task.spec.steps or await evaluations.is_running(tx.connection, task.id):
        return False
    progress = await progress_of(tx.connection, task.id)
    return await end_task(tx, task, TaskState.FINISHED, data={"version": task.version, "reward": progress.reward})


async def _ended(tx: Transaction, by_id: dict[str, Task], ended: Sequence[EvaluatedGroup]) -> None:
    await charge_evaluation(tx.connection, by_id, ended)
    for task, version in await evaluations.complete(tx.connection, {(group.task, group.version) for group in ended}):
        await _finish(tx, by_id[task], version)


async def _finish(tx: Transaction, task: Task, version: int) -> None:
    """Report the result, unless the task has ended with that of an earlier evaluation."""
    current = (await tasks.lock_tasks(tx.connection, [task.id]))[0]
    if not current.is_live:
        return
    result = result_of(await evaluations.attempts_of(tx.connection, task.id, version), task.spec.evaluation)
    reported = _reported(result)
    planned_at, finished_at = await evaluations.finish(tx.connection, task.id, version, result.reward, dict(reported))
    failure = await evaluations.first_failure(tx.connection, task.id, version) if result.failed_share else ""
    data: dict[str, JsonValue] = {"version": version, **reported, "took_s": (finished_at - planned_at).total_seconds()}
    tx.emit_event(task.tenant, task.id, "evaluation", data | ({"failure": failure} if failure else {}))
    reason = reason_to_finish(task.spec, current.version, evaluated=Evaluated(version, result.reward))
    if reason is not None:
        data = {"version": current.version, "reward": result.reward, "reason": reason}
        await end_task(tx, current, TaskState.FINISHED, reason=reason, data=data)
    else:
        await finish_if_done(tx, current)


def _reported(result: Result) -> dict[str, JsonValue]:
    reported: dict[str, JsonValue] = asdict(result)
    reported["pass_at"] = {str(k): value for k, value in result.pass_at.items()}
    return reported
