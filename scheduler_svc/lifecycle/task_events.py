"""What the outside is told when a task changes: an event, and the task's current status."""

import time
from collections.abc import Mapping
from dataclasses import replace

from pydantic import JsonValue
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.messages import Event, TaskStatus
from scheduler_svc.decisions.task_warnings import TaskWarning
from scheduler_svc.store.queries import outbox
from scheduler_svc.store.queries.outbox import OutboxMessage
from scheduler_svc.store.queries.progress import Progress, progress_of
from scheduler_svc.store.queries.tasks import Task, find_task, set_warnings


def announce(connection: AsyncConnection, tenant: str, task: str, event: str, data: dict[str, JsonValue] | None = None) -> None:
    """Record an event and publish it, in order."""
    message = Event.model_validate({"tenant": tenant, "task": task, "event": event, "at_s": time.time(), "data": data or {}})
    outbox.record_and_post(connection, message, streams.events(tenant, task))


async def announce_warnings(connection: AsyncConnection, task: Task, standing: Mapping[TaskWarning, str]) -> Task:
    """The locked task with the warnings that stand from now on: those that began or are over since are events, and kept with the task.

    A sentence stays as it was when its warning began. The caller publishes the status.
    """
    kept = {warning.value: task.warnings.get(warning, sentence) for warning, sentence in standing.items()}
    if kept == task.warnings:
        return task
    await set_warnings(connection, task.id, kept)
    for name in sorted(kept.keys() ^ task.warnings.keys()):
        over = name not in kept
        data: dict[str, JsonValue] = {"warning": name, "reason": task.warnings[name] if over else kept[name], "over": over}
        announce(connection, task.tenant, task.id, "warning", data | {"version": task.version})
    return replace(task, warnings=kept)


async def publish_status(connection: AsyncConnection, task: str | Task, progress: Progress | None = None) -> None:
    """Publish the task's status as the transaction leaves it; an id and missing progress are looked up."""
    found = await find_task(connection, task) if isinstance(task, str) else task
    assert found is not None
    status = _status(found, progress or await progress_of(connection, found.id))
    outbox.post(connection, [OutboxMessage(streams.value_subject(streams.TASKS_BUCKET, found.id), status, "", as_json=True)])


def _status(task: Task, progress: Progress) -> TaskStatus:
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
        submitted_s=task.submitted_at.timestamp(),
        updated_s=time.time(),
    )
