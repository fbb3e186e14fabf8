"""Outbox relay: publishes rows of the outbox in order, exactly once in effect, because message ids are derived."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.bus import Bus
from common.errors import Fatal, Reject
from common.periodic import run_forever
from common.resilience import crashpoints
from scheduler_svc.base.database import RELAY_LOCK, Database
from scheduler_svc.base.queries import outbox
from scheduler_svc.base.queries.outbox import OutboxRow
from scheduler_svc.upkeep import store_consistency
from scheduler_svc.upkeep.store_consistency import HighWaterMark

RELAY_BATCH_SIZE = 256
IDLE_S = 1.0

log = structlog.get_logger()


def superseded_rows(rows: Sequence[OutboxRow], sequences: Sequence[int]) -> list[OutboxRow]:
    """Newest rows of keys whose older value was stored later, so that readers see the old one; `sequences`: 0 for refused rows."""
    newest: dict[str, tuple[OutboxRow, int, int]] = {}
    for row, sequence in zip(rows, sequences, strict=True):
        if row.subject.startswith(streams.VALUES):
            latest = max(sequence, newest[row.subject][2] if row.subject in newest else 0)
            newest[row.subject] = row, sequence, latest
    return [row for row, sequence, latest in newest.values() if 0 < sequence < latest]


class OutboxRelay:
    """Publishes the outbox; one replica's relay at a time, so that order is kept."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._bus = bus
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Relay new rows now. Rows written by other replicas are found within IDLE_S."""
        self._woken.set()

    async def run(self) -> None:
        """Relay until cancelled; when PostgreSQL is unavailable, wait for the lock as at start."""
        await run_forever(self._relay, IDLE_S, "relay_interrupted")

    async def _relay(self) -> None:
        async with self._database.alone(RELAY_LOCK) as connection:
            if found := await store_consistency.difference(self._database, self._bus):
                raise Fatal(f"{found}; {store_consistency.CORRECT}")
            mark = await HighWaterMark.read(self._bus, await self._deployment(connection))
            while True:
                self._woken.clear()
                if await self._relay_some(connection, mark) < RELAY_BATCH_SIZE:
                    await self._wait()

    async def _deployment(self, connection: AsyncConnection) -> str:
        async with self._database.patience(), connection.begin():
            return (await outbox.relayed(connection)).deployment

    async def _relay_some(self, connection: AsyncConnection, mark: HighWaterMark) -> int:
        """Publish up to RELAY_BATCH_SIZE of the oldest rows; returns how many."""
        async with self._database.patience(), connection.begin():
            rows = await outbox.oldest_rows(connection, RELAY_BATCH_SIZE)
        if not rows:
            return 0
        # One connection keeps the order of these calls; only a retried one may be stored late.
        sequences = await asyncio.gather(*(self._publish(row) for row in rows))
        for row in superseded_rows(rows, sequences):
            await self._publish(replace(row, message_id=f"outbox:{row.id}:again"))
        await mark.write(max(row.id for row in rows))
        crashpoints.reached("before_forget")
        async with self._database.patience(), connection.begin():
            await outbox.delivered(connection, [row.id for row in rows])
        return len(rows)

    async def _publish(self, row: OutboxRow) -> int:
        """Publish one row; returns its sequence in its stream, 0 when NATS refused it for good."""
        message_id = row.message_id or f"outbox:{row.id}"
        try:
            return await self._bus.publish_raw(row.subject, row.body, message_id, row.headers)
        except Reject as error:  # a permanent refusal must not block the rows behind it
            log.error("letter_refused", subject=row.subject, message=message_id, reason=str(error))
            return 0

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(IDLE_S):
                await self._woken.wait()
        except TimeoutError:
            pass
