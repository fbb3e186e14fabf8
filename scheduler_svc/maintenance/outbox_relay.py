"""The outbox's way out: rows become messages, in order, once each in effect (their ids are derived)."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from common import crashpoints, streams
from common.bus import Bus
from common.cancellation import notice_cancellation
from common.errors import Fatal, Reject, Retry
from scheduler_svc.maintenance import store_consistency
from scheduler_svc.maintenance.store_consistency import HighWaterMark
from scheduler_svc.store.database import RELAY_LOCK, Database
from scheduler_svc.store.queries import outbox
from scheduler_svc.store.queries.outbox import OutboxRow

RELAY_BATCH_SIZE = 256
IDLE_S = 1.0

log = structlog.get_logger()


def superseded_rows(rows: Sequence[OutboxRow], sequences: Sequence[int]) -> list[OutboxRow]:
    """The newest values of keys of which an older value was stored later, and so is what readers see."""
    newest: dict[str, tuple[OutboxRow, int, int]] = {}
    for row, sequence in zip(rows, sequences, strict=True):
        if row.subject.startswith(streams.VALUES):
            latest = max(sequence, newest[row.subject][2] if row.subject in newest else 0)
            newest[row.subject] = row, sequence, latest
    return [row for row, sequence, latest in newest.values() if 0 < sequence < latest]


class OutboxRelay:
    """Publishes what transactions wrote. Only one replica's relay works at a time, so that order is kept."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._bus = bus
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """There may be something new. Rows written by other replicas are found within IDLE_S."""
        self._woken.set()

    async def run(self) -> None:
        """Relay until cancelled; when PostgreSQL goes away, start again with the lock."""
        while True:
            notice_cancellation()
            try:
                async with self._database.alone(RELAY_LOCK) as connection:
                    if found := await store_consistency.difference(self._database, self._bus):
                        raise Fatal(f"{found}; {store_consistency.CORRECT}")
                    marker = await HighWaterMark.read(self._bus, await self._deployment(connection))
                    while True:
                        notice_cancellation()
                        self._woken.clear()
                        if await self._relay_some(connection, marker) < RELAY_BATCH_SIZE:
                            await self._wait()
            except (Retry, OSError) as error:
                log.warning("relay_interrupted", error=str(error))
                await asyncio.sleep(IDLE_S)

    async def _deployment(self, connection: AsyncConnection) -> str:
        async with self._database.patience(), connection.begin():
            return (await outbox.relayed(connection)).deployment

    async def _relay_some(self, connection: AsyncConnection, marker: HighWaterMark) -> int:
        """The oldest rows, RELAY_BATCH_SIZE at most; returns how many."""
        async with self._database.patience(), connection.begin():
            rows = await outbox.oldest_rows(connection, RELAY_BATCH_SIZE)
        if not rows:
            return 0
        # Publishing keeps the order of these calls: they go down one connection. Only one that is tried again falls behind.
        sequences = await asyncio.gather(*(self._publish(row) for row in rows))
        for row in superseded_rows(rows, sequences):
            await self._publish(replace(row, message_id=f"outbox:{row.id}:again"))
        await marker.write(max(row.id for row in rows))
        crashpoints.reached("before_forget")
        async with self._database.patience(), connection.begin():
            await outbox.delivered(connection, [row.id for row in rows])
        return len(rows)

    async def _publish(self, row: OutboxRow) -> int:
        """Its sequence in its stream; 0 when it can have none."""
        message_id = row.message_id or f"outbox:{row.id}"
        try:
            return await self._bus.publish_raw(row.subject, row.body, message_id, row.headers)
        except Reject as error:  # what no retry would change stops nothing behind it
            log.error("letter_refused", subject=row.subject, message=message_id, reason=str(error))
            return 0

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(IDLE_S):
                await self._woken.wait()
        except TimeoutError:
            pass
