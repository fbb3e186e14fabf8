"""Store consistency: detects diverged histories of PostgreSQL and NATS, after either was lost or restored from a backup.

Each store keeps a high-water mark of the other, in row numbers of the outbox, which only grow: NATS the last published row
(key-value bucket `history`), PostgreSQL the last row that it knows to be published. Therefore

    mark in NATS  >  last row number of PostgreSQL               PostgreSQL is older than NATS
    mark in NATS  <  last row that PostgreSQL saw published      NATS is older than PostgreSQL, or was emptied
    another deployment's mark                                    one of them belongs elsewhere

Running on would mix two histories: sequences that name other messages, versions trained twice under one name. A scheduler
that finds this waits and logs it, until the matching backup is restored or `scheduler_svc.reconcile` reconciles both.
"""

import asyncio

import structlog

from common.bus import Bus
from common.errors import MarlaasError
from common.messages import HistoryMark
from common.resilience.backoff import Backoff
from common.streams import HISTORY_BUCKET
from scheduler_svc.base.database import Database
from scheduler_svc.base.queries import outbox
from scheduler_svc.base.queries.outbox import Relayed

KEY = "outbox"
RECHECK_S = 1.0
COMPARISON = Backoff(first_s=1.0, max_s=30.0)
CORRECT = "restore both from backups of one moment, or reconcile what is there: python -m scheduler_svc.reconcile"

log = structlog.get_logger()


def disagreement(relayed: Relayed, mark: HistoryMark | None, last_given: int) -> str | None:
    """Why the two histories diverge; None when they may be one. `last_given`: last row number of PostgreSQL's outbox."""
    if mark is None:
        if relayed.position == 0:
            return None
        return f"NATS has no mark of this deployment, whose outbox was published up to {relayed.position}: its store is new, or another's"
    if mark.deployment != relayed.deployment:
        return f"NATS belongs to deployment {mark.deployment}, PostgreSQL to {relayed.deployment}"
    if mark.position > last_given:
        return f"PostgreSQL is older than NATS: it wrote {last_given} rows of its outbox, and NATS has those up to {mark.position}"
    if mark.position < relayed.position:
        return f"NATS is older than PostgreSQL: it has the outbox up to {mark.position}, and {relayed.position} was published"
    return None


async def compare(database: Database, bus: Bus) -> str | None:
    """`disagreement` of the stores as they are. Raises: Retry when a store is unavailable."""
    # In this order, a scheduler that publishes meanwhile shows no divergence.
    async with database.transaction() as tx:
        relayed = await outbox.relayed(tx.connection)
    mark = await bus.kv.get(HISTORY_BUCKET, KEY, HistoryMark)
    async with database.transaction() as tx:
        last_given = await outbox.last_given(tx.connection)
    return disagreement(relayed, mark, last_given)


async def difference(database: Database, bus: Bus, recheck_s: float = RECHECK_S) -> str | None:
    """`compare`, confirmed by a second read: a replica of a NATS cluster may answer with a stale mark."""
    if await compare(database, bus) is None:
        return None
    await asyncio.sleep(recheck_s)
    return await compare(database, bus)


async def wait_for_one_history(database: Database, bus: Bus, *, recheck_s: float = RECHECK_S) -> None:
    """Return once both stores have one history; log the divergence until then."""
    attempt = 0
    while True:
        try:
            found = await difference(database, bus, recheck_s)
        except MarlaasError as error:
            found = None
            log.warning("history_unknown", attempt=attempt + 1, error=str(error))
        else:
            if found is None:
                return
            log.error("stores_disagree", attempt=attempt + 1, reason=found, correct=CORRECT)
        attempt += 1
        await asyncio.sleep(COMPARISON.pause_s(attempt))


class HighWaterMark:
    """Mark in NATS of the last published row; written before PostgreSQL deletes the rows.

    Written by compare-and-set, and never decreased: a relay that lost its lock unnoticed could otherwise make NATS look older
    than PostgreSQL.
    """

    def __init__(self, bus: Bus, deployment: str, position: int, revision: int) -> None:
        self._bus = bus
        self._deployment = deployment
        self._position = position
        self._revision = revision

    @classmethod
    async def read(cls, bus: Bus, deployment: str) -> "HighWaterMark":
        """Raises: Retry when NATS is unavailable."""
        found = await bus.kv.find(HISTORY_BUCKET, KEY, HistoryMark)
        return cls(bus, deployment, found.value.position, found.revision) if found else cls(bus, deployment, 0, 0)

    async def write(self, position: int) -> None:
        """Raises: Retry when NATS is unavailable, or another relay has written the mark."""
        self._position = max(position, self._position)
        mark = HistoryMark(deployment=self._deployment, position=self._position)
        self._revision = await self._bus.kv.replace(HISTORY_BUCKET, KEY, mark, revision=self._revision)
