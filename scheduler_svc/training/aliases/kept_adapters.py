"""Adapters that outlive the rules of their task: other tasks started from them, or aliases name them."""

from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import AdapterRef, BlobRef
from scheduler_svc.training.aliases import queries as aliases
from scheduler_svc.training.decisions.endings.retention import RetentionWindow
from scheduler_svc.training.queries import evaluations, steps, tasks
from scheduler_svc.training.queries.tasks import Task


async def held_by_others(connection: AsyncConnection, *ids: str) -> dict[str, BlobRef]:
    """Adapters of these tasks that are kept whatever their own rules and their tenants' days say, by name."""
    return await tasks.started_from(connection, ids) | dict(await aliases.adapters_of(connection, ids))


async def kept_adapter(connection: AsyncConnection, task: Task, version: int) -> AdapterRef | None:
    """Adapter of a version of the locked task, which stays until the lock is released; None where it may be gone already.

    What no rule keeps is deleted at any moment, so that nothing may begin to rely on it, also where it is still stored.
    """
    adapter = await steps.adapter_of(connection, task.id, version)
    if adapter is None:
        return None
    held = await evaluations.held_versions(connection, task.id, task.spec)
    is_kept = RetentionWindow(task.spec, task.version, held).has_adapter(version) and "adapters" not in task.expired
    return adapter if is_kept or adapter.blob.name in await held_by_others(connection, task.id) else None
