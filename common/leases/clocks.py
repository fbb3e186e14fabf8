"""Clocks of pools: NATS's clock minus the time for which the pool's sampler was parked. Deadlines of groups are in pool time."""

from common.bus import REREAD_S, Bus, FollowedBucket
from common.messages import PoolClock
from common.streams import CLOCKS_BUCKET


class PoolClocks:
    """Current times of pools; NATS's time for a pool that was never parked. Call `read` before the first comparison with a message's
    deadline."""

    def __init__(self, bus: Bus, *, reread_s: float = REREAD_S) -> None:
        self._bus = bus
        self._clocks = FollowedBucket(bus, CLOCKS_BUCKET, PoolClock, reread_s=reread_s)
        self.read, self.follow = self._clocks.read, self._clocks.follow

    def now_s(self, pool: str) -> float:
        """The pool's time in seconds; stops while its sampler is parked."""
        now_s = self._bus.clock.now_s()
        clock = self._clocks.known.get(pool)
        return now_s if clock is None else now_s - clock.parked_until_s(now_s)
