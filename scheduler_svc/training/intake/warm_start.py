"""Warm start: version 0 of a task is the adapter of another task of the same tenant."""

from sqlalchemy.ext.asyncio import AsyncConnection

from common.errors import Reject
from common.messages import AdapterRef
from common.spec import Lora, TaskSpec
from scheduler_svc.training.aliases import kept_adapter
from scheduler_svc.training.queries import tasks
from scheduler_svc.training.queries.tasks import Task


async def starting_adapter(connection: AsyncConnection, task: str, spec: TaskSpec) -> AdapterRef | None:
    """Adapter of version 0 under the new `task`'s name; None for a task that starts from its seed.

    The source is locked, so that its next step does not delete the adapter.
    Raises: Reject, with the field and why the task cannot start from it.
    """
    if spec.start.task is None:
        return None
    found = await tasks.lock_own_task(connection, spec.tenant, spec.start.task)
    if found is None:
        raise Reject(f"start.task: tenant '{spec.tenant}' has no task '{spec.start.task}'")
    version = spec.start.version or found.version
    _check_likeness(found, spec)
    if found.version == 0:
        raise Reject(f"start.task: '{found.id}' has trained no version yet")
    if version > found.version:
        raise Reject(f"start.version: '{found.id}' has versions 1 to {found.version}, not {version}")
    adapter = await kept_adapter(connection, found, version)
    if adapter is None:
        raise Reject(f"start.version: version {version} of '{found.id}' is no longer stored, as its keep.adapters or the tenant's days say")
    return adapter.model_copy(update={"task": task, "version": 0})


def _check_likeness(other: Task, spec: TaskSpec) -> None:
    if other.spec.pool != spec.pool:
        raise Reject(f"start.task: '{other.id}' changes the base model of pool '{other.spec.pool}', this task that of '{spec.pool}'")
    for field in Lora.model_fields:
        theirs, ours = getattr(other.spec.lora, field), getattr(spec.lora, field)
        if (set(theirs), len(theirs)) != (set(ours), len(ours)) if field == "targets" else theirs != ours:
            raise Reject(f"start.task: '{other.id}' has lora.{field} {_said(theirs)}, this task {_said(ours)}; they must be equal")


def _said(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value).lower() if isinstance(value, bool) else f"{value}"
