"""The outbox's way out: rows become messages, in order, once each in effect (their ids are derived)."""

import asyncio

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from common import crashpoints
from common.bus import Bus
from common.cancellation import notice_cancellation
from common.errors import Fatal, Reject, Retry
from scheduler_svc import history
from scheduler_svc.database import RELAY_LOCK, Database
from scheduler_svc.history import Marker
from scheduler_svc.queries import outbox
from scheduler_svc.queries.outbox import Parcel

MOST_AT_ONCE = 256
IDLE_S = 1.0

log = structlog.get_logger()


class Relay:
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
                    if found := await history.difference(self._database, self._bus):
                        raise Fatal(f"{found}; {history.CORRECT}")
                    marker = await Marker.read(self._bus, await self._deployment(connection))
                    while True:
                        notice_cancellation()
                        self._woken.clear()
                        if await self._relay_some(connection, marker) < MOST_AT_ONCE:
                            await self._wait()
            except (Retry, OSError) as error:
                log.warning("relay_interrupted", error=str(error))
                await asyncio.sleep(IDLE_S)

    async def _deployment(self, connection: AsyncConnection) -> str:
        async with self._database.patience(), connection.begin():
            return (await outbox.relayed(connection)).deployment

    async def _relay_some(self, connection: AsyncConnection, marker: Marker) -> int:
        """The oldest rows, MOST_AT_ONCE at most; returns how many."""
        async with self._database.patience(), connection.begin():
            parcels = await outbox.oldest_parcels(connection, MOST_AT_ONCE)
        if not parcels:
            return 0
        # Publishing keeps the order of these calls: they go down one connection.
        await asyncio.gather(*(self._publish(parcel) for parcel in parcels))
        await marker.write(max(parcel.id for parcel in parcels))
        crashpoints.reached("before_forget")
        async with self._database.patience(), connection.begin():
            await outbox.delivered(connection, [parcel.id for parcel in parcels])
        return len(parcels)

    async def _publish(self, parcel: Parcel) -> None:
        message_id = parcel.message_id or f"outbox:{parcel.id}"
        try:
            await self._bus.publish_raw(parcel.subject, parcel.body, message_id, parcel.headers)
        except Reject as error:  # what no retry would change stops nothing behind it
            log.error("letter_refused", subject=parcel.subject, message=message_id, reason=str(error))

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(IDLE_S):
                await self._woken.wait()
        except TimeoutError:
            pass
