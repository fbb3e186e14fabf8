"""Room in the key-value bucket `tasks`, which has a bound in bytes: statuses of the tasks that ended first are removed.

`ask.<tenant>.status` and `tasks` answer from PostgreSQL, also for these tasks. A service that starts later takes them for live, and has
no messages about them. A full bucket refuses new tasks' statuses; the outbox waits then, and nothing is lost.
"""

from datetime import UTC, datetime

import structlog

from common.bus import Bus
from common.messages import StatusesRemoved
from common.streams import HISTORY_BUCKET, TASKS_BUCKET
from scheduler_svc.base.database import Database
from scheduler_svc.training.queries import tasks

FULL_SHARE = 0.8
"""Share of the bound from which on statuses are removed."""
ROOM_SHARE = 0.6
"""Share of the bound at which no more are."""
BATCH_SIZE = 500
KEY = "statuses"
"""Entry in the bucket `history` that says which statuses may be missing."""

log = structlog.get_logger()


async def make_room(database: Database, bus: Bus, *, batch: int = BATCH_SIZE) -> int:
    """Remove statuses where the bucket is nearly full; returns how many. Raises: Retry when PostgreSQL or NATS is unavailable."""
    removed, share = 0, FULL_SHARE
    while (await bus.kv.filled_share(TASKS_BUCKET)) >= share:
        share = ROOM_SHARE
        mark = await bus.kv.get(HISTORY_BUCKET, KEY, StatusesRemoved)
        async with database.statements() as connection:
            since = datetime.fromtimestamp(mark.until_s if mark else 0.0, UTC)
            found = await tasks.ended_after(connection, since, most=batch)
        if not found:
            log.error(
                "statuses_fill_their_bucket", bucket=TASKS_BUCKET, correct="MARLAAS_NATS_STREAMS_BYTES: every status is a live task's"
            )
            break
        await bus.kv.put(
            HISTORY_BUCKET, KEY, StatusesRemoved(until_s=max(found.values()).timestamp())
        )  # first: afterwards they may be missing
        await bus.kv.remove(TASKS_BUCKET, found)
        removed += len(found)
    if removed:
        log.info("statuses_removed", statuses=removed)
    return removed
