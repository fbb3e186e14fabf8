"""Queries on the tasks' use of the blob store, and on its alarm."""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.base.sql import Statement, any_of
from scheduler_svc.base.states import LIVE
from scheduler_svc.base.tables import store_alarm, stored_blobs, tasks


async def bytes_of(connection: AsyncConnection, ids: Collection[str]) -> Mapping[str, int]:
    """Bytes of these tasks' blobs in the store; 0 where there are none."""
    statement = select(stored_blobs.c.task, func.sum(stored_blobs.c.bytes)).where(stored_blobs.c.task.in_(ids))
    found = {task: int(size) for task, size in (await connection.execute(statement.group_by(stored_blobs.c.task))).all()}
    return {task: found.get(task, 0) for task in ids}


_FORGET = Statement(delete(stored_blobs).where(stored_blobs.c.name == any_of("names")))


async def forget_blobs(connection: AsyncConnection, names: Sequence[str]) -> None:
    """Remove these blobs from the record."""
    await _FORGET.run(connection, {"names": list(names)})


async def forget_others(connection: AsyncConnection, task: str, kept: Collection[str]) -> None:
    """Remove all of the task's blobs except `kept` from the record."""
    await connection.execute(delete(stored_blobs).where(stored_blobs.c.task == task, stored_blobs.c.name.not_in(kept)))


async def tasks_with_blobs(connection: AsyncConnection) -> set[str]:
    return set((await connection.execute(select(stored_blobs.c.task).distinct())).scalars())


async def largest_version(connection: AsyncConnection) -> int:
    """Bytes of the largest stored version of a live task, adapter and checkpoint together."""
    live = stored_blobs.join(tasks, tasks.c.id == stored_blobs.c.task)
    sizes = select(func.sum(stored_blobs.c.bytes).label("size")).select_from(live).where(tasks.c.state.in_(LIVE))
    versions = sizes.group_by(stored_blobs.c.task, stored_blobs.c.version).subquery()
    return int((await connection.execute(select(func.coalesce(func.max(versions.c.size), 0)))).scalar_one())


async def alarm(connection: AsyncConnection) -> bool:
    """Whether the store alarm is raised."""
    return bool((await connection.execute(select(store_alarm.c.raised))).scalar_one())


async def set_alarm(connection: AsyncConnection, *, raised: bool) -> bool:
    """Raise or clear the alarm; False when another replica has done so."""
    statement = update(store_alarm).where(store_alarm.c.raised != raised).values(raised=raised, since=func.now())
    return (await connection.execute(statement.returning(store_alarm.c.raised))).first() is not None
