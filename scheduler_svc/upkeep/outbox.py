"""Outbox: its rows, the relay that publishes them, and whether PostgreSQL and NATS have one history.

Rows are published in order, exactly once in effect, because message ids are derived.

Each store keeps a high-water mark of the other, in row numbers of the outbox, which only grow: NATS the last published row
(key-value bucket `history`), PostgreSQL the last row that it knows to be published. Therefore

    mark in NATS  >  last row number of PostgreSQL               PostgreSQL is older than NATS
    mark in NATS  <  last row that PostgreSQL saw published      NATS is older than PostgreSQL, or was emptied
    another deployment's mark                                    one store belongs to another deployment

Continuing would mix two histories: sequences that name other messages, versions trained twice under one name. A scheduler
that finds this waits and logs it, until the matching backup is restored or `scheduler_svc.reconcile` reconciles both.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import structlog
from sqlalchemy import ARRAY, BigInteger, Text, cast, delete, exists, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.bus import Bus
from common.errors import Fatal, MarlaasError, Reject
from common.messages import HistoryMark
from common.periodic import run_forever
from common.resilience import crashpoints
from common.resilience.backoff import Backoff
from common.resilience.event_loop import is_set_within
from scheduler_svc.base.database import RELAY_LOCK, Database
from scheduler_svc.base.sql import Statement, any_of, given
from scheduler_svc.base.tables import outbox, relay

RELAY_BATCH_SIZE = 256
IDLE_S = 1.0
HISTORY_KEY = "outbox"
RECHECK_S = 1.0
COMPARISON = Backoff(first_s=1.0, max_s=30.0)
CORRECT = "restore both from backups of one moment, or reconcile the present ones: python -m scheduler_svc.reconcile"

log = structlog.get_logger()


@dataclass(frozen=True)
class OutboxRow:
    """A row of the outbox."""

    id: int
    subject: str
    message_id: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Relayed:
    """Row number up to which NATS has confirmed the outbox, and the deployment's id."""

    deployment: str
    position: int


class HighWaterMark:
    """Mark in NATS of the last published row; written before PostgreSQL deletes the rows.

    Written by compare-and-set, and never decreased: otherwise a relay that lost its lock without noticing could make NATS look older
    than PostgreSQL.
    """

    def __init__(self, bus: Bus, deployment: str, position: int, revision: int) -> None:
        self._bus = bus
        self._deployment = deployment
        self._position = position
        self._revision = revision

    @classmethod
    async def read(cls, bus: Bus, deployment: str) -> "HighWaterMark":
        """Read the current mark. Raises: Retry if NATS is unavailable."""
        found = await bus.kv.find(streams.HISTORY_BUCKET, HISTORY_KEY, HistoryMark)
        return cls(bus, deployment, found.value.position, found.revision) if found else cls(bus, deployment, 0, 0)

    async def write(self, position: int) -> None:
        """Raise the mark to `position`. Raises: Retry if NATS is unavailable, or another relay has written the mark."""
        self._position = max(position, self._position)
        mark = HistoryMark(deployment=self._deployment, position=self._position)
        self._revision = await self._bus.kv.replace(streams.HISTORY_BUCKET, HISTORY_KEY, mark, revision=self._revision)


def superseded_rows(rows: Sequence[OutboxRow], sequences: Sequence[int]) -> list[OutboxRow]:
    """Newest row of each key whose older value was stored after it, so that readers see that value. `sequences`: 0 for refused rows."""
    newest: dict[str, tuple[OutboxRow, int, int]] = {}
    for row, sequence in zip(rows, sequences, strict=True):
        if row.subject.startswith(streams.VALUES):
            latest = max(sequence, newest[row.subject][2] if row.subject in newest else 0)
            newest[row.subject] = row, sequence, latest
    return [row for row, sequence, latest in newest.values() if 0 < sequence < latest]


class OutboxRelay:
    """Publishes the outbox; only one replica's relay at a time, which keeps the order."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._bus = bus
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Relay new rows now. Rows written by other replicas are found within IDLE_S."""
        self._woken.set()

    async def run(self) -> None:
        """Run until cancelled; if PostgreSQL is unavailable, wait for the lock as at the start."""
        await run_forever(self._relay, IDLE_S, "relay_interrupted")

    async def _relay(self) -> None:
        async with self._database.alone(RELAY_LOCK) as connection:
            if found := await difference(self._database, self._bus):
                raise Fatal(f"{found}; {CORRECT}")
            mark = await HighWaterMark.read(self._bus, await self._deployment(connection))
            while True:
                self._woken.clear()
                if await self._relay_some(connection, mark) < RELAY_BATCH_SIZE:
                    await is_set_within(self._woken, IDLE_S)

    async def _deployment(self, connection: AsyncConnection) -> str:
        async with self._database.patience(), connection.begin():
            return (await relayed(connection)).deployment

    async def _relay_some(self, connection: AsyncConnection, mark: HighWaterMark) -> int:
        """Publish up to RELAY_BATCH_SIZE of the oldest rows; returns their number."""
        async with self._database.patience(), connection.begin():
            rows = await oldest_rows(connection, RELAY_BATCH_SIZE)
        if not rows:
            return 0
        # One connection keeps these calls in order; only a retried call may be stored late.
        sequences = await asyncio.gather(*(self._publish(row) for row in rows))
        for row in superseded_rows(rows, sequences):
            await self._publish(replace(row, message_id=f"outbox:{row.id}:again"))
        await mark.write(max(row.id for row in rows))
        crashpoints.reached("before_forget")
        async with self._database.patience(), connection.begin():
            await delivered(connection, [row.id for row in rows])
        return len(rows)

    async def _publish(self, row: OutboxRow) -> int:
        """Publish one row; returns its stream sequence, 0 if NATS refused it permanently."""
        message_id = row.message_id or f"outbox:{row.id}"
        try:
            return await self._bus.publish_raw(row.subject, row.body, message_id, row.headers)
        except Reject as error:  # a permanent refusal must not block the rows behind it
            log.error("letter_refused", subject=row.subject, message=message_id, reason=str(error))
            return 0


def disagreement(published: Relayed, mark: HistoryMark | None, last_given: int) -> str | None:
    """Why the two histories diverge; None if they may be one. `last_given`: last row number of PostgreSQL's outbox."""
    if mark is None:
        if published.position == 0:
            return None
        return f"NATS has no mark of this deployment, whose outbox was published up to {published.position}: its store is new, or another's"
    if mark.deployment != published.deployment:
        return f"NATS belongs to deployment {mark.deployment}, PostgreSQL to {published.deployment}"
    if mark.position > last_given:
        return f"PostgreSQL is older than NATS: it wrote {last_given} rows of its outbox, and NATS has those up to {mark.position}"
    if mark.position < published.position:
        return f"NATS is older than PostgreSQL: it has the outbox up to {mark.position}, and {published.position} was published"
    return None


async def compare(database: Database, bus: Bus) -> str | None:
    """Current `disagreement` of the stores. Raises: Retry if a store is unavailable."""
    # Read in this order, so that a concurrently publishing scheduler shows no divergence.
    async with database.transaction() as tx:
        published = await relayed(tx.connection)
    mark = await bus.kv.get(streams.HISTORY_BUCKET, HISTORY_KEY, HistoryMark)
    async with database.transaction() as tx:
        return disagreement(published, mark, await last_given(tx.connection))


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


_OLDEST = Statement(
    select(outbox.c.id, outbox.c.subject, outbox.c.message_id, outbox.c.headers, outbox.c.body).order_by(outbox.c.id).limit(given("most"))
)


async def oldest_rows(connection: AsyncConnection, most: int) -> list[OutboxRow]:
    rows = await _OLDEST.run(connection, {"most": most})
    return [OutboxRow(row.id, row.subject, row.message_id, row.headers, row.body) for row in rows]


async def has_messages_about(connection: AsyncConnection, names: Collection[str]) -> bool:
    """Whether the outbox has an unpublished message whose subject names one of the tasks or tenants."""
    named = func.string_to_array(outbox.c.subject, ".").op("&&")(cast(list(names), ARRAY(Text)))
    return bool((await connection.execute(select(exists().where(named)))).scalar_one())


_forgotten = delete(outbox).where(outbox.c.id == any_of("ids", BigInteger)).cte("forgotten")
_DELIVERED = Statement(update(relay).values(position=func.greatest(relay.c.position, given("reached", BigInteger))).add_cte(_forgotten))


async def delivered(connection: AsyncConnection, ids: Sequence[int]) -> None:
    """Delete rows that NATS has confirmed, and advance the confirmed position."""
    await _DELIVERED.run(connection, {"ids": list(ids), "reached": max(ids)})


async def relayed(connection: AsyncConnection) -> Relayed:
    row = (await connection.execute(select(relay.c.deployment, relay.c.position))).one()
    return Relayed(row.deployment, row.position)


async def set_relayed(connection: AsyncConnection, position: int) -> None:
    """Set the confirmed position; new rows get numbers above it."""
    await connection.execute(update(relay).values(position=position))
    await connection.execute(text("SELECT setval('outbox_id_seq', :position)"), {"position": position})


async def drop_work(connection: AsyncConnection) -> None:
    """Delete rows that would start work in other services; events and statuses are still published."""
    await connection.execute(delete(outbox).where(outbox.c.subject.regexp_match("^(prompts|trajectories)[.]")))


async def last_given(connection: AsyncConnection) -> int:
    """Last row number of the outbox, including deleted rows; 0 before the first."""
    statement = text("SELECT coalesce(pg_sequence_last_value('outbox_id_seq'), 0)")
    return int((await connection.execute(statement)).scalar_one())
