"""Events of a task, and its published status."""

import time
from collections.abc import Mapping
from dataclasses import replace

from pydantic import JsonValue

from common import streams
from common.messages import TaskStatus
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.training.decisions.endings import TaskWarning
from scheduler_svc.training.queries.progress import TaskProgress, end_of_task, progress_of
from scheduler_svc.training.queries.tasks import Task, change, find_task


async def emit_warnings(tx: Transaction, task: Task, standing: Mapping[TaskWarning, str]) -> Task:
    """Store the locked task's current warnings, `standing`, and emit an event for each raised or cleared one; returns the updated task.

    A warning keeps the sentence with which it was raised. The caller publishes the status.
    """
    kept = {warning.value: task.warnings.get(warning, sentence) for warning, sentence in standing.items()}
    if kept == task.warnings:
        return task
    await change(tx.connection, task.id, warnings=kept)
    for name in sorted(kept.keys() ^ task.warnings.keys()):
        over = name not in kept
        data: dict[str, JsonValue] = {"warning": name, "reason": task.warnings[name] if over else kept[name], "over": over}
        tx.emit_event(task.tenant, task.id, "warning", data | {"version": task.version})
    return replace(task, warnings=kept)


async def publish_status(tx: Transaction, task: str | Task, progress: TaskProgress | None = None) -> None:
    """Publish the task's status within this transaction; loads a task given by id, and the progress if it is not given."""
    found = await find_task(tx.connection, task) if isinstance(task, str) else task
    assert found is not None
    status = _status(found, progress or (await progress_of(tx.connection, found.id))[found.id])
    tx.post_value(streams.TASKS_BUCKET, found.id, status)


def _status(task: Task, progress: TaskProgress) -> TaskStatus:
    failures = progress.failures
    return TaskStatus(
        tenant=task.tenant,
        task=task.id,
        name=task.spec.name,
        pool=task.spec.pool,
        state=task.state,
        reason=task.reason,
        version=task.version,
        steps=task.spec.steps,
        reward=progress.reward,
        staleness=progress.staleness,
        sampled_tokens=progress.sampled_tokens,
        failed_share=failures.share if failures.ended else None,
        dead_letters=progress.dead_letters,
        adapter=task.adapter,
        warnings=task.warnings,
        expected_end_s=end_of_task(task.state, progress.trained_at, task.spec.steps - task.version),
        submitted_s=task.submitted_at.timestamp(),
        updated_s=time.time(),
    )
