"""How long the scheduler has watched without a disturbance: whose fault it is when a group runs out of time.

Groups that time out again and again fail their task, because its environment hangs. Groups that timed out while NATS or
PostgreSQL was away, replicas came or went, or a clock jumped say nothing about it: they are void and refilled, no more.
"""

import time
from collections.abc import Callable, Hashable

import structlog

from common.bus import Bus

JUMP_S = 5.0
"""NATS's clock against this process's monotonic one; a laptop that was asleep shows here too."""

log = structlog.get_logger()


class StabilityMonitor:
    """To be asked at every tick. `replicas` says who is alive."""

    def __init__(self, bus: Bus, replicas: Callable[[], Hashable]) -> None:
        self._bus = bus
        self._replicas = replicas
        self._alive = replicas()
        self._ahead_s = bus.clock.now_s() - time.monotonic()
        self._since = time.monotonic()

    def look(self) -> float:
        """Seconds since the last disturbance."""
        alive, ahead_s = self._replicas(), self._bus.clock.now_s() - time.monotonic()
        if abs(ahead_s - self._ahead_s) > JUMP_S:
            log.warning("clock_jumped", by_s=round(ahead_s - self._ahead_s, 1))
            self.disturb()
        elif alive != self._alive or not self._bus.is_connected:
            self.disturb()
        self._alive, self._ahead_s = alive, ahead_s
        return time.monotonic() - self._since

    def disturb(self) -> None:
        self._since = time.monotonic()
