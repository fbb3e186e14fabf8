"""Clocks of pools: NATS's clock less the time for which the pool's sampler was parked. Deadlines of groups are in the pool's time."""

import structlog

from common.bus import Bus
from common.messages import PoolClock
from common.streams import CLOCKS_BUCKET

log = structlog.get_logger()


class PoolClocks:
    """A pool that was never parked shows NATS's time."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._clocks: dict[str, PoolClock] = {}

    def now_s(self, pool: str) -> float:
        """The pool's time; it stands while its sampler is parked."""
        now_s = self._bus.clock.now_s()
        clock = self._clocks.get(pool)
        return now_s if clock is None else now_s - clock.parked_until_s(now_s)

    async def read(self) -> None:
        """The clocks as they are, before the first message whose deadline is compared. Raises: Unavailable."""
        self._clocks = await self._bus.kv.entries(CLOCKS_BUCKET, PoolClock)

    async def follow(self) -> None:
        """Keep the clocks, until cancelled."""
        async for pool, clock in self._bus.kv.watch(CLOCKS_BUCKET, PoolClock):
            if clock is None:
                self._clocks.pop(pool, None)
            else:
                self._clocks[pool] = clock
