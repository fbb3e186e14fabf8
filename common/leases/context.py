"""Identity of an executor's process, and dependencies shared by the lease components."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from common import streams
from common.accelerators import Parkable, Tier, executor_name
from common.bus import Bus
from common.leases.history import History, Tally
from common.leases.locks import Locks
from common.leases.watchdog import Watchdog

RENEW_S = 3.0
"""Seconds between renewals of a lease."""
MEMORY_WAIT_S = 10.0
"""Maximum seconds to wait for device memory that others were ordered to free."""


async def no_driver() -> int | None:
    """Default of `free_bytes`, for a device without a driver: None, which means unknown."""
    return None


@dataclass(frozen=True)
class Identity:
    """A process that computes on an accelerator."""

    accelerator: str
    service: str
    """`rollout` or `trainer`."""
    pool: str
    replica: str
    """Name of the process; changes at each restart, unless the deployment sets it."""

    @property
    def executor(self) -> str:
        return executor_name(self.service, self.pool)

    @property
    def orders(self) -> str:
        """Subject of orders to this executor."""
        return streams.lease_order(self.accelerator, self.executor)


@dataclass(frozen=True)
class ExecutorContext:
    bus: Bus
    me: Identity
    executable: Parkable
    locks: Locks
    tally: Tally
    budget_bytes: int
    """Bytes that all executors of the device may use together."""
    fence_tier: Tier = Tier.HOST
    """Tier into which the executor parks itself if its lease is not confirmed in time."""
    history: History = field(default_factory=History)
    watchdog: Watchdog = field(default_factory=Watchdog)
    free_bytes: Callable[[], Awaitable[int | None]] = no_driver
    """Free bytes of the device according to its driver; None if unknown."""
    clock: Callable[[], float] = time.monotonic
    """This process's monotonic clock, for the lease and for waits for memory."""
    renew_s: float = RENEW_S
    memory_wait_s: float = MEMORY_WAIT_S
