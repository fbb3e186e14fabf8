"""Retention of ended tasks, by their tenant's retention days: announced by an event `expiring`, then deleted
(`tenancy/decisions/expiry.py`).

Times are NATS's clock, as for deadlines. Idempotent, so that every replica may run it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import structlog
from sqlalchemy import RowMapping, delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.bus import Bus
from scheduler_svc.base.audit import Actor, accepted
from scheduler_svc.base.database import Database
from scheduler_svc.base.states import LIVE
from scheduler_svc.base.tables import events, tasks, tenants
from scheduler_svc.tenancy.decisions.expiry import KINDS, LEAD_S, expiry
from scheduler_svc.training.queries.tasks import lock_tasks
from scheduler_svc.upkeep.deletion.deletion import PATIENCE_S, delete_ended
from scheduler_svc.upkeep.deletion.garbage_collector import GarbageCollector


@dataclass(frozen=True)
class EndedTask:
    """An ended task that has announced deletions, or whose tenant has retention days."""

    id: str
    tenant: str
    ended_s: float
    """Unix time of the task's end."""
    announced: dict[str, float]
    """Announced kinds, with the Unix time of the announcement."""
    expired: list[str]
    """Kinds that were deleted."""
    days: dict[str, int]


_DAYS = [tenants.c[f"{kind}_days"] for kind in KINDS]
_ENDED_S = func.extract("epoch", func.coalesce(tasks.c.ended_at, tasks.c.updated_at)).label("ended_s")


async def ended_tasks(connection: AsyncConnection) -> list[EndedTask]:
    columns = (tasks.c.id, tasks.c.tenant, _ENDED_S, tasks.c.expiring, tasks.c.expired)
    statement = select(*columns, *_DAYS).join(tenants, tenants.c.id == tasks.c.tenant)
    wanted = or_(tasks.c.expiring != {}, *(days > 0 for days in _DAYS))
    rows = (await connection.execute(statement.where(tasks.c.state.not_in(LIVE), wanted).order_by(tasks.c.id))).mappings()
    return [_ended(row) for row in rows]


def _ended(row: RowMapping) -> EndedTask:
    days = {kind: row[f"{kind}_days"] for kind in KINDS}
    return EndedTask(row["id"], row["tenant"], float(row["ended_s"]), row["expiring"], row["expired"], days)


async def announce(connection: AsyncConnection, task: str, before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Record the announced kinds; False if another replica changed them, or the task is gone."""
    guard = (tasks.c.id == task) & (tasks.c.expiring == dict(before))
    return (await connection.execute(update(tasks).where(guard).values(expiring=dict(after)).returning(tasks.c.id))).first() is not None


async def expire(connection: AsyncConnection, task: str, expired: Collection[str]) -> None:
    """Record kinds whose data is no longer needed."""
    await connection.execute(update(tasks).where(tasks.c.id == task).values(expired=sorted(expired)))


async def delete_events(connection: AsyncConnection, task: str) -> None:
    await connection.execute(delete(events).where(events.c.task == task))


BY_RETENTION = 0
"""Sequence recorded for deletions without a job."""

log = structlog.get_logger()


async def apply_retention(database: Database, bus: Bus, collector: GarbageCollector, wake_relay: Callable[[], None]) -> None:
    """Announce and delete the data of ended tasks that is due. Raises: Retry if NATS or PostgreSQL is unavailable."""
    async with database.transaction() as tx:
        ended = await ended_tasks(tx.connection)
    cleaned: set[str] = set()
    for task in ended:
        now = expiry(task.days, task.ended_s, task.announced, task.expired, bus.clock.now_s())
        await _announce(database, task, now.announced)
        if "tasks" in now.due and await _delete(database, task):
            collector.enqueue_deletion()
        elif due := now.due - {"tasks"}:
            await _expire(database, bus, collector, task, due)
            cleaned.add(task.tenant)
    wake_relay()
    for tenant in sorted(cleaned):
        await collector.delete_blobs([blob.name for blob in await collector.surplus(tenant)])


async def _delete(database: Database, task: EndedTask) -> bool:
    """Delete the task; False for a task with aliases, which stays until it has none."""
    async with database.transaction(patience_s=PATIENCE_S) as tx:
        is_deleted = await delete_ended(tx, task.id, BY_RETENTION)
        if is_deleted:
            tx.record(accepted(_retention(task), task.id, {"what": ["tasks"]}))
    return is_deleted


async def _announce(database: Database, task: EndedTask, announced: dict[str, float]) -> None:
    if announced == task.announced:
        return
    async with database.transaction() as tx:
        if await announce(tx.connection, task.id, task.announced, announced):
            for kind in sorted(announced.keys() - task.announced.keys()):
                log.info("expiring", task=task.id, data=kind)
                tx.emit_event(task.tenant, task.id, "expiring", {"what": kind, "in_s": LEAD_S})


async def _expire(database: Database, bus: Bus, collector: GarbageCollector, task: EndedTask, due: frozenset[str]) -> None:
    """Delete due events immediately. Due blobs become unneeded: no task can start from them, and they are deleted next, or by the sweep."""
    if "events" in due:
        await collector.wait_until_published([task.id])
        await bus.streams.erase(streams.EVENTS, streams.events(task.tenant, task.id))
    async with database.transaction() as tx:
        await lock_tasks(tx.connection, [task.id])
        if "events" in due:
            await delete_events(tx.connection, task.id)
        await expire(tx.connection, task.id, due.union(task.expired))
        tx.record(accepted(_retention(task), task.id, {"what": [*sorted(due)]}))
    log.info("expired", task=task.id, data=sorted(due))


def _retention(task: EndedTask) -> Actor:
    return Actor(task.tenant, "expire", "scheduler")
