"""Whether PostgreSQL and NATS tell of the same past. Either may be restored to an older backup, or lost.

Each keeps a mark of how far the other came, in rows of the outbox, whose numbers only grow: NATS the last row that was
published (key-value bucket `history`), PostgreSQL the last one that it knows to be published. So

    mark in NATS  >  last number that PostgreSQL ever gave       PostgreSQL is older than NATS
    mark in NATS  <  last number that PostgreSQL saw published   NATS is older than PostgreSQL, or was emptied
    another deployment's mark                                    one of them belongs elsewhere

Going on would mix two pasts: sequences that name other messages, versions trained twice under one name. So a scheduler
that finds this waits and says so, until the other backup is there too or `scheduler_svc.accept` makes one past of both.
"""

import asyncio

import structlog

from common.backoff import Backoff
from common.bus import Bus
from common.errors import MarlaasError
from common.messages import HistoryMark
from common.streams import HISTORY_BUCKET
from scheduler_svc.store.database import Database
from scheduler_svc.store.queries import outbox
from scheduler_svc.store.queries.outbox import Relayed

KEY = "outbox"
RECHECK_S = 1.0
COMPARISON = Backoff(first_s=1.0, max_s=30.0)
CORRECT = "restore both from backups of one moment, or go on with what is there: python -m scheduler_svc.accept"

log = structlog.get_logger()


def disagreement(relayed: Relayed, mark: HistoryMark | None, last_given: int) -> str | None:
    """Why both cannot be of one past; None when they may be. `last_given`: the last number that PostgreSQL gave to a row."""
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
    """As `disagreement`, of the stores as they are. Raises: Retry when one of them is away."""
    # In this order, a scheduler that publishes meanwhile looks like none of it.
    async with database.transaction() as tx:
        relayed = await outbox.relayed(tx.connection)
    mark = await bus.kv.get(HISTORY_BUCKET, KEY, HistoryMark)
    async with database.transaction() as tx:
        last_given = await outbox.last_given(tx.connection)
    return disagreement(relayed, mark, last_given)


async def difference(database: Database, bus: Bus, recheck_s: float = RECHECK_S) -> str | None:
    """As `compare`, believed only when it is found twice: a replica of a cluster may answer with what was a moment ago."""
    if await compare(database, bus) is None:
        return None
    await asyncio.sleep(recheck_s)
    return await compare(database, bus)


async def wait_for_one_history(database: Database, bus: Bus, *, recheck_s: float = RECHECK_S) -> None:
    """Returns once both stores are of one past; says what is wrong until then."""
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
    """Tells NATS how far it came; before PostgreSQL forgets the rows.

    The mark is set only as long as nobody else set it, and never to less: what a relay that has lost its lock without knowing
    still writes would look like a NATS that is older than PostgreSQL.
    """

    def __init__(self, bus: Bus, deployment: str, position: int, revision: int) -> None:
        self._bus = bus
        self._deployment = deployment
        self._position = position
        self._revision = revision

    @classmethod
    async def read(cls, bus: Bus, deployment: str) -> "HighWaterMark":
        """Raises: Retry when NATS is away."""
        found = await bus.kv.find(HISTORY_BUCKET, KEY, HistoryMark)
        return cls(bus, deployment, found.value.position, found.revision) if found else cls(bus, deployment, 0, 0)

    async def write(self, position: int) -> None:
        """Raises: Retry when NATS is away, or another relay has set the mark."""
        self._position = max(position, self._position)
        mark = HistoryMark(deployment=self._deployment, position=self._position)
        self._revision = await self._bus.kv.replace(HISTORY_BUCKET, KEY, mark, revision=self._revision)
