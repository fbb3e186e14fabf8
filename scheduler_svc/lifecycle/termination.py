"""Termination of tasks and groups: ending a task voids its live work; a void group is refunded; a task with too many failures fails."""

from collections import Counter
from collections.abc import Collection

from pydantic import JsonValue
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.lifecycle.accounting import charge_evaluation, settle_accounts
from scheduler_svc.lifecycle.task_events import announce, publish_status
from scheduler_svc.metrics import VOID_GROUPS
from scheduler_svc.store.queries import evaluations, groups, steps, tasks
from scheduler_svc.store.queries.progress import Failures, progress_of
from scheduler_svc.store.queries.sql.parameters import GroupKey
from scheduler_svc.store.queries.tasks import Task
from scheduler_svc.store.states import LIVE, TaskState, VoidReason

MIN_FAILURES_TO_FAIL = 8


MAX_UNSUPPORTED_SHARE = 0.5
"""Share of a task's latest groups that may hold an attempt which the deployment cannot grade: beyond it most sampling is for nothing."""


def failures_to_fail(task: Task) -> int:
    """Groups that may fail in a row, none succeeding between them, before the task is failed."""
    return max(MIN_FAILURES_TO_FAIL, task.spec.algorithm.groups_per_step)


async def end_task(
    connection: AsyncConnection, task: Task, to: TaskState, *, reason: str = "", data: dict[str, JsonValue] | None = None
) -> bool:
    """Move a live task to a final state and void what is in flight; False when it ended before."""
    if not await tasks.transition_task(connection, task.id, LIVE, to, reason=reason):
        return False
    await void_live_groups(connection, task, f"task {to}")
    await steps.void_steps(connection, task.id)
    unfinished = await evaluations.live_group_keys(connection, task.id)
    await charge_evaluation(connection, {task.id: task}, await evaluations.give_up_groups(connection, unfinished, f"task {to}"))
    await evaluations.void_running(connection, task.id)
    announce(connection, task.tenant, task.id, to, data if data is not None else {"reason": reason})
    await publish_status(connection, task.id)
    return True


async def void_live_groups(connection: AsyncConnection, task: Task, detail: str) -> int:
    """Void whatever the task has under way, for a reason that is not its own; returns how many groups that were."""
    live = await groups.live_group_keys(connection, task.id)
    if live:
        ended = await groups.void_groups(connection, live, VoidReason.CANCELLED, detail)
        await tasks.count_voided(connection, task.id, len(live))
        await settle_accounts(connection, {task.id: task}, ended)
    return len(live)


async def void_and_refund(
    connection: AsyncConnection,
    by_id: dict[str, Task],
    keys: Collection[GroupKey],
    reason: VoidReason,
    details: dict[GroupKey, str],
    excused: Collection[str] = (),
    not_in_a_row: Collection[str] = (),
) -> None:
    """Void the groups `keys` (locked) of the tasks `by_id` (locked); fail a task that fails again and again.

    `excused`: tasks that this is not the fault of. `not_in_a_row`: tasks of which other groups succeeded at the same time.
    """
    VOID_GROUPS.labels(reason.value).inc(len(keys))
    for key in sorted(keys):
        ended = await groups.void_groups(connection, [key], reason, details.get(key, ""))
        await settle_accounts(connection, by_id, ended)
    for task_id, count in Counter(task for task, _ in keys).items():
        task = by_id[task_id]
        failed = reason in (VoidReason.FAILED, VoidReason.DEADLINE) and task_id not in excused
        in_a_row = 0 if task_id in not_in_a_row else task.failures_in_a_row + count
        await tasks.count_voided(connection, task_id, count, failures_in_a_row=in_a_row if failed else None)
        if not failed:
            continue
        progress = await progress_of(connection, task_id)
        verdict = _reason_to_fail(task, in_a_row, progress.failures)
        if verdict is not None:
            last = next((details[key] for key in sorted(keys, reverse=True) if key[0] == task_id and key in details), str(reason))
            await end_task(connection, task, TaskState.FAILED, reason=f"{verdict}; the last: {last}")
        else:
            await publish_status(connection, task_id, progress)


def _reason_to_fail(task: Task, in_a_row: int, found: Failures) -> str | None:
    """Why the task cannot go on after so many failures in a row, and `found` among its latest groups; None when it can."""
    if in_a_row >= failures_to_fail(task):
        return f"{in_a_row} groups in a row failed"
    if found.unsupported >= MIN_FAILURES_TO_FAIL and found.unsupported > MAX_UNSUPPORTED_SHARE * found.ended:
        return f"{found.unsupported} of the latest {found.ended} groups had attempts that cannot be graded here"
    limit = task.spec.limits.max_failed_share
    if found.failed >= MIN_FAILURES_TO_FAIL and found.share > limit:
        return f"{found.failed} of the latest {found.ended} groups failed (limits.max_failed_share is {limit:g})"
    return None
