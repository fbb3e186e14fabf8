"""Snapshots of running tasks: how many groups each one's pace allows, and whether its next step is ready."""

from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.base.scheduling_policy import TaskSnapshot
from scheduler_svc.training.decisions.admission import allowance
from scheduler_svc.training.queries import groups, steps, tasks
from scheduler_svc.training.queries.tasks import Task


async def task_snapshots(connection: AsyncConnection) -> list[TaskSnapshot]:
    """Snapshots of all running tasks, for policies that compare them."""
    ready, training = await groups.ready_groups(connection), await steps.tasks_in_training(connection)
    return [
        TaskSnapshot(
            task=task.id,
            accepted_at=task.accepted_at or task.submitted_at,
            allowance=allowance_of_task(task),
            lockstep_allowance=allowance_of_task(task, max_staleness=0),
            has_step_ready=ready.get(task.id, 0) >= task.spec.algorithm.groups_per_step,
            is_training=task.id in training,
        )
        for task in await tasks.lock_running_tasks(connection)
    ]


def allowance_of_task(task: Task, max_staleness: int | None = None) -> int:
    algorithm = task.spec.algorithm
    return allowance(
        version=task.version,
        max_staleness=algorithm.max_staleness if max_staleness is None else max_staleness,
        steps=task.spec.steps,
        groups_per_step=algorithm.groups_per_step,
        admitted=task.admitted,
        voided=task.voided,
    )
