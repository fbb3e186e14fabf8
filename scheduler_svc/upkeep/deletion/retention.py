"""Retention of ended tasks, by the days of their tenant: announced by an event `expiring`, then deleted (`tenancy/decisions/expiry.py`).

Times are NATS's clock, as deadlines are. Idempotent, so that every replica may run it.
"""

from collections.abc import Callable

import structlog

from common import streams
from common.bus import Bus
from scheduler_svc.base.audit import Actor, accepted
from scheduler_svc.base.database import Database
from scheduler_svc.tenancy.decisions.expiry import LEAD_S, expiry
from scheduler_svc.training.queries import tasks
from scheduler_svc.upkeep.deletion import expiry as queries
from scheduler_svc.upkeep.deletion.deletion import PATIENCE_S, delete_ended
from scheduler_svc.upkeep.deletion.expiry import EndedTask
from scheduler_svc.upkeep.deletion.garbage_collector import GarbageCollector

BY_RETENTION = 0
"""Request of deletions that no job asked for."""

log = structlog.get_logger()


async def apply_retention(database: Database, bus: Bus, collector: GarbageCollector, wake_relay: Callable[[], None]) -> None:
    """Announce and delete what is due. Raises: Retry when NATS or PostgreSQL is unavailable."""
    async with database.transaction() as tx:
        ended = await queries.ended_tasks(tx.connection)
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
    """False for a task with aliases, which stays until it has none."""
    async with database.transaction(patience_s=PATIENCE_S) as tx:
        is_deleted = await delete_ended(tx, task.id, BY_RETENTION)
        if is_deleted:
            tx.record(accepted(_retention(task), task.id, {"what": ["tasks"]}))
    return is_deleted


async def _announce(database: Database, task: EndedTask, announced: dict[str, float]) -> None:
    if announced == task.announced:
        return
    async with database.transaction() as tx:
        if await queries.announce(tx.connection, task.id, task.announced, announced):
            for kind in sorted(announced.keys() - task.announced.keys()):
                log.info("expiring", task=task.id, data=kind)
                tx.emit_event(task.tenant, task.id, "expiring", {"what": kind, "in_s": LEAD_S})


async def _expire(database: Database, bus: Bus, collector: GarbageCollector, task: EndedTask, due: frozenset[str]) -> None:
    """Events are deleted immediately. Blobs become unneeded, so that no task can start from them, and are deleted next, or by the sweep."""
    if "events" in due:
        await collector.wait_until_published([task.id])
        await bus.streams.erase(streams.EVENTS, streams.events(task.tenant, task.id))
    async with database.transaction() as tx:
        await tasks.lock_tasks(tx.connection, [task.id])
        if "events" in due:
            await queries.delete_events(tx.connection, task.id)
        await queries.expire(tx.connection, task.id, due.union(task.expired))
        tx.record(accepted(_retention(task), task.id, {"what": [*sorted(due)]}))
    log.info("expired", task=task.id, data=sorted(due))


def _retention(task: EndedTask) -> Actor:
    return Actor(task.tenant, "expire", "scheduler")
