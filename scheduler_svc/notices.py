"""What the outside is told when a task changes: an event, and the task's current status."""

import time

from pydantic import JsonValue
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.messages import Event, TaskStatus
from scheduler_svc.queries import groups, outbox, steps
from scheduler_svc.queries.outbox import Letter
from scheduler_svc.queries.tasks import Task, find_task


async def announce(connection: AsyncConnection, tenant: str, task: str, event: str, data: dict[str, JsonValue] | None = None) -> None:
    """Record an event and publish it, in order."""
    number = await outbox.record_event(connection, tenant, task, event, dict(data or {}))
    message = Event.model_validate({"tenant": tenant, "task": task, "event": event, "at_s": time.time(), "data": data or {}})
    await outbox.post(connection, [Letter(streams.events(tenant, task), message, f"event:{number}")])


async def publish_status(connection: AsyncConnection, task: str | Task) -> None:
    """Publish the task's status as the transaction leaves it; an id is looked up."""
    found = await find_task(connection, task) if isinstance(task, str) else task
    assert found is not None
    subject = streams.value_subject(streams.TASKS_BUCKET, found.id)
    await outbox.post(connection, [Letter(subject, await _status(connection, found), "", as_json=True)])


async def _status(connection: AsyncConnection, task: Task) -> TaskStatus:
    step = await steps.latest_step(connection, task.id)
    failures = await groups.latest_failures(connection, task.id)
    return TaskStatus(
        tenant=task.tenant,
        task=task.id,
        name=task.spec.name,
        pool=task.spec.pool,
        state=task.state,
        reason=task.reason,
        version=task.version,
        steps=task.spec.steps,
        reward=step.reward if step else None,
        staleness=step.staleness_mean if step else None,
        sampled_tokens=await steps.sampled_tokens(connection, task.id),
        failed_share=failures.share if failures.ended else None,
        dead_letters=await outbox.count_dead_letters(connection, task.id),
        adapter=task.adapter,
        submitted_s=task.submitted_at.timestamp(),
        updated_s=time.time(),
    )
