"""Store alarm: an event to every live task before the blob store is full, and another when there is room.

A full store refuses only adapters and checkpoints (`MARLAAS_NATS_BLOBS_BYTES`): trainers hold their steps, and resume by
themselves. Messages still pass, so `marlaas prune` and `marlaas delete` work.
"""

from pydantic import JsonValue

from common.blobs import ROOM, StoreUsage
from scheduler_svc.base.database import Database
from scheduler_svc.training.queries import tasks
from scheduler_svc.upkeep.deletion import storage

CLEARED_BELOW = 0.9
"""Multiple of the threshold below which the alarm is cleared: a single threshold would raise and clear it with each step."""


def is_alarming(usage: StoreUsage, *, threshold: float, next_bytes: int, raised: bool) -> bool:
    """Whether the alarm is raised: by the share in use, or where the largest version would not fit.

    `next_bytes`: size of the largest version of any live task.
    """
    if usage.limit_bytes is None:
        return False
    if raised:
        threshold, next_bytes = threshold * CLEARED_BELOW, 2 * next_bytes
    return usage.share >= threshold or usage.limit_bytes - usage.used_bytes < next_bytes


async def update_alarm(database: Database, usage: StoreUsage, threshold: float) -> bool:
    """Raise or clear the alarm; True when its state changed. Raises: Retry when PostgreSQL is unavailable."""
    async with database.transaction() as tx:
        raised = await storage.alarm(tx.connection)
        next_bytes = await storage.largest_version(tx.connection)
        wanted = is_alarming(usage, threshold=threshold, next_bytes=next_bytes, raised=raised)
        if wanted == raised or not await storage.set_alarm(tx.connection, raised=wanted):
            return False
        live = sorted(await tasks.live_tasks(tx.connection))
        sizes = await storage.bytes_of(tx.connection, live)
        tenants = await tasks.tenants_of(tx.connection, live)
        for task in live:
            data: dict[str, JsonValue] = {
                "raised": wanted,
                "used_bytes": usage.used_bytes,
                "limit_bytes": usage.limit_bytes,
                "share": round(usage.share, 4),
                "threshold": threshold,
                "task_bytes": sizes[task],
                "reason": sentence(usage, threshold, raised=wanted),
            }
            tx.emit_event(tenants[task], task, "storage", data)
        return True


def sentence(usage: StoreUsage, threshold: float, *, raised: bool) -> str:
    """The alarm's text in events."""
    full = f"the blob store has {usage.used_bytes} of {usage.limit_bytes} bytes, {usage.share:.0%}"
    if not raised:
        return f"{full}: there is room"
    return f"{full} (the alarm is at {threshold:.0%}); once it is full no step can be stored: {ROOM}"
