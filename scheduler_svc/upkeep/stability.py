"""Time since the last infrastructure disturbance; earlier timeouts do not count against the task.

Groups that time out repeatedly fail their task, because its environment hangs. Groups that timed out while NATS or PostgreSQL was
unavailable, replicas started or stopped, or a clock jumped are void and refilled, but are not counted as failures.
"""

import time
from collections.abc import Callable, Hashable

import structlog

from common.bus import Bus
from scheduler_svc.training.decisions.pool_load import PoolTimes, StableFor

JUMP_S = 5.0
"""Seconds by which NATS's clock and the monotonic clock must diverge to count as a jump, as after a laptop's sleep."""

log = structlog.get_logger()


class StabilityMonitor:
    """Queried at every tick. `replicas` returns the live replicas."""

    def __init__(self, bus: Bus, replicas: Callable[[], Hashable]) -> None:
        self._bus = bus
        self._replicas = replicas
        self._alive = replicas()
        self._ahead_s = bus.clock.now_s() - time.monotonic()
        self._since = time.monotonic()
        self._noted: float | None = None
        """The `_since` for which `_parked_s` holds: seconds for which pools had been parked then."""
        self._parked_s: dict[str, float] = {}

    def stable_for_s(self) -> float:
        """Check for a disturbance; returns the seconds since the last one."""
        alive, ahead_s = self._replicas(), self._bus.clock.now_s() - time.monotonic()
        if abs(ahead_s - self._ahead_s) > JUMP_S:
            log.warning("clock_jumped", by_s=round(ahead_s - self._ahead_s, 1))
            self.reset()
        elif alive != self._alive or not self._bus.is_connected:
            self.reset()
        self._alive, self._ahead_s = alive, ahead_s
        return time.monotonic() - self._since

    def stable_in(self, times: PoolTimes) -> StableFor:
        """The same in the time of each pool."""
        stable_for_s = self.stable_for_s()
        if self._noted != self._since:
            self._noted, self._parked_s = self._since, {pool: times.parked_s(pool) for pool in times.clocks}
        parked_s = {pool: times.parked_s(pool) - self._parked_s.get(pool, 0.0) for pool in times.clocks}
        return lambda pool: stable_for_s - max(0.0, parked_s.get(pool, 0.0))

    def reset(self) -> None:
        self._since = time.monotonic()
