"""Handles environment checks: starts the task, or rejects it with the environment's objection."""

from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import EnvironmentChecked
from scheduler_svc.lifecycle import evaluations
from scheduler_svc.lifecycle.fair_queue import join_fair_queue
from scheduler_svc.lifecycle.task_events import announce, publish_status
from scheduler_svc.lifecycle.termination import end_task
from scheduler_svc.store.queries import tasks
from scheduler_svc.store.states import TaskState


async def environment_checked(connection: AsyncConnection, answer: EnvironmentChecked) -> None:
    """Start the task, or reject it with the environment's objection."""
    locked = await tasks.lock_tasks(connection, [answer.task])
    if not locked or locked[0].state != TaskState.SUBMITTED:
        return
    task = locked[0]
    if answer.objection is not None:
        await end_task(
            connection, task, TaskState.REJECTED, reason=answer.objection, data={"reasons": [f"environment: {answer.objection}"]}
        )
        return
    await join_fair_queue(connection, task)
    await tasks.transition_task(connection, task.id, [TaskState.SUBMITTED], TaskState.RUNNING)
    await evaluations.plan(connection, task)
    announce(connection, task.tenant, task.id, "accepted")
    await publish_status(connection, task.id)
