"""Sweep of requests to versions (`prompts.serve`): they outlive their task's end, but not its deletion, nor their own deadline."""

import structlog

from common import streams
from common.bus import Bus
from common.errors import Reject
from common.messages import ServeRequest
from scheduler_svc.base.database import Database
from scheduler_svc.base.queries import deleted

log = structlog.get_logger()


async def sweep(bus: Bus, database: Database) -> None:
    """Purge requests that no replica has taken in time, and those to versions of deleted tasks. Raises: Retry."""
    subjects = await bus.streams.subjects(streams.REQUESTS, streams.serve("*", "*", "*"))
    async with database.transaction() as tx:
        gone = await deleted.deleted_among(tx.connection, set(map(_task_of, subjects)))
    for subject in subjects:
        if _task_of(subject) in gone:
            log.info("messages_swept", subject=subject, messages=await bus.streams.erase(streams.REQUESTS, subject))
        elif await _is_overdue(bus, subject):
            log.info("messages_swept", subject=subject, messages=await bus.streams.purge(streams.REQUESTS, subject))


def _task_of(subject: str) -> str:
    return streams.token(subject, 4) or ""


async def _is_overdue(bus: Bus, subject: str) -> bool:
    """Whether no replica would sample the newest attempt at a request any more."""
    newest = await bus.streams.last(streams.REQUESTS, subject)
    if newest is None:
        return False
    try:
        return newest.read(ServeRequest).first_token_by_s < bus.clock.now_s()
    except Reject:
        return True
