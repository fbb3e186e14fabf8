"""Entry into the fair queue: the virtual times with which a task, and its tenant, start to run."""

from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.tenancy import shares
from scheduler_svc.training.decisions.admission import starting_virtual_time
from scheduler_svc.training.queries.tasks import Task


async def join_fair_queue(connection: AsyncConnection, task: Task) -> None:
    """Raise the virtual times of a task that starts to run, and of its tenant where that was idle, to those of active ones."""
    others, siblings = await shares.virtual_times(connection, task.id, task.tenant)
    await shares.start_shares(
        connection,
        task.id,
        task.tenant,
        task_time=starting_virtual_time(task.virtual_time, siblings.active, siblings.past),
        # A tenant that is active already keeps its place: a second task buys no second start.
        tenant_time=starting_virtual_time(0.0, others.active, others.past) if not siblings.active else 0.0,
    )
