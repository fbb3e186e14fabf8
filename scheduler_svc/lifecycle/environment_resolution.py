"""Environment resolution: finds the queue of a task's environment and has the environment's options checked."""

from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.messages import CheckEnvironment
from scheduler_svc.lifecycle.task_events import publish_status
from scheduler_svc.store.queries import outbox, tasks
from scheduler_svc.store.queries.outbox import OutboxMessage
from scheduler_svc.store.states import TaskState


async def resolve_environment(connection: AsyncConnection, task_id: str, families: set[str]) -> None:
    """Send a waiting task's environment to be checked, now that env replicas say what they serve."""
    for task in await tasks.lock_tasks(connection, [task_id]):
        if task.state == TaskState.SUBMITTED and task.family is None:
            await check_environment(connection, task.id, task.tenant, task.spec.environment.name, families)


async def check_environment(connection: AsyncConnection, task: str, tenant: str, name: str, families: set[str]) -> None:
    """Ask the environment's family whether it takes the task's options; the task waits when none serves it yet."""
    family = family_of(name, families)
    if family is None:
        await tasks.set_reason(connection, task, f"waiting for an environment replica that serves '{name}'")
        await publish_status(connection, task)
        return
    found = await tasks.find_task(connection, task)
    assert found is not None
    await tasks.set_family(connection, task, family)
    spec = found.spec
    evaluation = spec.evaluation_environment if spec.evaluation.options else None
    message = CheckEnvironment(tenant=tenant, task=task, family=family, environment=spec.environment, seed=spec.seed, evaluation=evaluation)
    outbox.post(connection, [OutboxMessage(streams.check(family, task), message, f"{task}:check")])


def family_of(name: str, families: set[str]) -> str | None:
    """Which queue an environment's turns go through: its entry point's name, or `module` for `module:attribute`."""
    head = name.split(":")[0]
    if head in families:
        return head
    return "module" if ":" in name and "module" in families else None
