"""Termination of tasks and groups: ending a task voids its live work; a void group is refunded; a task with too many failures fails."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from pydantic import JsonValue
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.base.metrics import VOID_GROUPS
from scheduler_svc.base.sql import GroupKey
from scheduler_svc.base.states import LIVE, TaskState, VoidReason
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.training.accounting import settle_accounts, settle_void
from scheduler_svc.training.decisions.endings import reason_to_fail
from scheduler_svc.training.queries import evaluations, groups, steps, tasks
from scheduler_svc.training.queries.progress import progress_of
from scheduler_svc.training.queries.tasks import Task
from scheduler_svc.training.task_events import publish_status


async def end_task(tx: Transaction, task: Task, to: TaskState, *, reason: str = "", data: dict[str, JsonValue] | None = None) -> bool:
    """Move a live task to a final state and void its work in flight; False if it had already ended."""
    if not await tasks.transition_task(tx.connection, task.id, LIVE, to, reason=reason):
        return False
    # Decides who pays for work in flight: if the task failed, the payer of the work that failed it.
    void = VoidReason.FAILED if to == TaskState.FAILED else VoidReason.CANCELLED
    await void_live_groups(tx.connection, task, f"task {to}", paid_as=void)
    await steps.void_steps(tx.connection, task.id)
    unfinished = await evaluations.live_group_keys(tx.connection, task.id)
    abandoned = await groups.end_groups(tx.connection, unfinished, f"task {to}")
    await settle_accounts(tx.connection, {task.id: task}, abandoned, void=void)
    await evaluations.void_running(tx.connection, task.id)
    tx.emit_event(task.tenant, task.id, to, data if data is not None else {"reason": reason})
    await publish_status(tx, replace(task, state=to, reason=reason))
    return True


async def void_live_groups(connection: AsyncConnection, task: Task, detail: str, *, paid_as: VoidReason = VoidReason.CANCELLED) -> int:
    """Void the task's live groups, without counting failures; returns their number. `paid_as`: void reason that determines the payer."""
    live = await groups.live_group_keys(connection, task.id)
    if live:
        voided = await groups.void_groups(connection, live, VoidReason.CANCELLED, detail)
        await tasks.count_voided(connection, task.id, len(live))
        await settle_void(connection, {task.id: task}, voided, paid_as)
    return len(live)


async def void_and_refund(
    tx: Transaction,
    by_id: dict[str, Task],
    keys: Collection[GroupKey],
    reason: VoidReason,
    details: dict[GroupKey, str],
    excused: Collection[str] = (),
    not_in_a_row: Collection[str] = (),
) -> None:
    """Void and refund the groups `keys` of the tasks `by_id`, all locked; fail a task that has reached a failure limit.

    `details`: what happened, by group. `excused`: tasks whose failures do not count. `not_in_a_row`: tasks whose failure streak ends,
    because other groups of theirs succeeded in the same batch.
    """
    VOID_GROUPS.labels(reason.value).inc(len(keys))
    for key in sorted(keys):
        await settle_void(tx.connection, by_id, await groups.void_groups(tx.connection, [key], reason, details.get(key, "")), reason)
    for task_id, count in Counter(task for task, _ in keys).items():
        task = by_id[task_id]
        failed = reason in (VoidReason.FAILED, VoidReason.DEADLINE) and task_id not in excused
        in_a_row = 0 if task_id in not_in_a_row else task.failures_in_a_row + count
        await tasks.count_voided(tx.connection, task_id, count, failures_in_a_row=in_a_row if failed else None)
        if not failed:
            continue
        progress = (await progress_of(tx.connection, task_id))[task_id]
        verdict = reason_to_fail(task.spec, in_a_row, progress.failures)
        if verdict is not None:
            last = next((details[key] for key in sorted(keys, reverse=True) if key[0] == task_id and key in details), str(reason))
            await end_task(tx, task, TaskState.FAILED, reason=f"{verdict}; the last: {last}")
        else:
            await publish_status(tx, task_id, progress)
