"""Sweeps of obsolete entries in NATS: statuses, HTTP keys, requests to versions.

The key-value bucket `tasks` is bounded in bytes: when it is nearly full, statuses of the tasks that ended first are removed.
`ask.<tenant>.status` and `tasks` answer from PostgreSQL, also for these tasks. A service that starts later treats these tasks as live,
but gets no messages about them. A full bucket refuses new tasks' statuses; the outbox then waits, and no message is lost.
Requests (`prompts.serve`) outlive their task's end, but neither its deletion nor their own deadline.
"""

from datetime import UTC, datetime

import structlog

from common import streams
from common.bus import Bus
from common.errors import Reject
from common.messages import ServeRequest, StatusesRemoved
from common.streams import HISTORY_BUCKET, HTTP_KEYS_BUCKET, TASKS_BUCKET
from scheduler_svc.base import deleted
from scheduler_svc.base.database import Database
from scheduler_svc.tenancy import keys
from scheduler_svc.training.queries import tasks

FULL_SHARE = 0.8
"""Fill level at which removal of statuses starts."""
ROOM_SHARE = 0.6
"""Fill level at which removal of statuses stops."""
STATUSES_BATCH = 500
STATUSES_KEY = "statuses"
"""Entry in the bucket `history` that records which statuses may be missing."""

log = structlog.get_logger()


async def make_room_for_statuses(database: Database, bus: Bus, *, batch: int = STATUSES_BATCH) -> int:
    """Remove statuses if the bucket is nearly full; returns their number. Raises: Retry if PostgreSQL or NATS is unavailable."""
    removed, share = 0, FULL_SHARE
    while (await bus.kv.filled_share(TASKS_BUCKET)) >= share:
        share = ROOM_SHARE
        mark = await bus.kv.get(HISTORY_BUCKET, STATUSES_KEY, StatusesRemoved)
        async with database.statements() as connection:
            since = datetime.fromtimestamp(mark.until_s if mark else 0.0, UTC)
            found = await tasks.ended_after(connection, since, most=batch)
        if not found:
            log.error(
                "statuses_fill_their_bucket", bucket=TASKS_BUCKET, correct="MARLAAS_NATS_STREAMS_BYTES: every status is a live task's"
            )
            break
        await bus.kv.put(
            HISTORY_BUCKET, STATUSES_KEY, StatusesRemoved(until_s=max(found.values()).timestamp())
        )  # written first: from then on statuses may be missing
        await bus.kv.remove(TASKS_BUCKET, found)
        removed += len(found)
    if removed:
        log.info("statuses_removed", statuses=removed)
    return removed


async def remove_ended_keys(database: Database, bus: Bus) -> int:
    """Remove revoked and expired HTTP keys; returns their number. Raises: Retry if PostgreSQL or NATS is unavailable."""
    stored = await bus.kv.keys(HTTP_KEYS_BUCKET)
    if not stored:
        return 0
    async with database.statements() as connection:  # read after the bucket, so that it includes every stored key
        wanted = {each.value.digest for each in await keys.http_keys(connection) if not each.is_over}
    await bus.kv.remove(HTTP_KEYS_BUCKET, stored - wanted)
    return len(stored - wanted)


async def sweep_requests(bus: Bus, database: Database) -> None:
    """Purge requests past their deadlines, and requests to versions of deleted tasks. Raises: Retry."""
    subjects = await bus.streams.subjects(streams.REQUESTS, streams.serve("*", "*", "*"))
    async with database.transaction() as tx:
        gone = await deleted.deleted_among(tx.connection, set(map(_task_of, subjects)))
    for subject in subjects:
        if _task_of(subject) in gone:
            log.info("messages_swept", subject=subject, messages=await bus.streams.erase(streams.REQUESTS, subject))
        elif await _is_late(bus, subject):
            log.info("messages_swept", subject=subject, messages=await bus.streams.purge(streams.REQUESTS, subject))


def _task_of(subject: str) -> str:
    return streams.token(subject, 4) or ""


async def _is_late(bus: Bus, subject: str) -> bool:
    """Whether the newest attempt of a request is past its deadline, so that no replica would sample it."""
    newest = await bus.streams.last(streams.REQUESTS, subject)
    if newest is None:
        return False
    try:
        return newest.read(ServeRequest).first_token_by_s < bus.clock.now_s()
    except Reject:
        return True
