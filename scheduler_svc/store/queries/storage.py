"""Sentences about what tasks have in the blob store, and about the alarm when it fills."""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.store.states import LIVE
from scheduler_svc.store.tables import store_alarm, stored_blobs, tasks


async def bytes_of(connection: AsyncConnection, ids: Collection[str]) -> Mapping[str, int]:
    """Bytes of blobs that these tasks have in the store, 0 where there are none."""
    statement = select(stored_blobs.c.task, func.sum(stored_blobs.c.bytes)).where(stored_blobs.c.task.in_(ids))
    found = {task: int(size) for task, size in (await connection.execute(statement.group_by(stored_blobs.c.task))).all()}
    return {task: found.get(task, 0) for task in ids}


async def forget_blobs(connection: AsyncConnection, names: Sequence[str]) -> None:
    """These are no longer stored."""
    await connection.execute(delete(stored_blobs).where(stored_blobs.c.name.in_(names)))


async def forget_others(connection: AsyncConnection, task: str, kept: Collection[str]) -> None:
    """Of the task's blobs only these are stored."""
    await connection.execute(delete(stored_blobs).where(stored_blobs.c.task == task, stored_blobs.c.name.not_in(kept)))


async def tasks_with_blobs(connection: AsyncConnection) -> set[str]:
    return set((await connection.execute(select(stored_blobs.c.task).distinct())).scalars())


async def largest_version(connection: AsyncConnection) -> int:
    """Bytes of the largest version, adapter and checkpoint together, that a live task has in the store."""
    live = stored_blobs.join(tasks, tasks.c.id == stored_blobs.c.task)
    sizes = select(func.sum(stored_blobs.c.bytes).label("size")).select_from(live).where(tasks.c.state.in_(LIVE))
    versions = sizes.group_by(stored_blobs.c.task, stored_blobs.c.version).subquery()
    return int((await connection.execute(select(func.coalesce(func.max(versions.c.size), 0)))).scalar_one())


async def alarm(connection: AsyncConnection) -> bool:
    """Whether the alarm of a store that fills is raised."""
    return bool((await connection.execute(select(store_alarm.c.raised))).scalar_one())


async def set_alarm(connection: AsyncConnection, *, raised: bool) -> bool:
    """Raise or clear it; False when another replica has done so."""
    statement = update(store_alarm).where(store_alarm.c.raised != raised).values(raised=raised, since=func.now())
    return (await connection.execute(statement.returning(store_alarm.c.raised))).first() is not None
