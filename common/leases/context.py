"""An executor's process by name, and what the parts of its side of leases work with."""

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
"""Maximum wait for memory on the device that others are ordered to free."""


async def no_driver() -> int | None:
    """Free memory of a device without a driver to ask."""
    return None


@dataclass(frozen=True)
class Identity:
    """A process that computes on an accelerator."""

    accelerator: str
    service: str
    """rollout or trainer."""
    pool: str
    replica: str
    """Name of the process; another after each restart, unless the deployment gives it one."""

    @property
    def executor(self) -> str:
        return executor_name(self.service, self.pool)

    @property
    def orders(self) -> str:
        """Subject of its orders."""
        return streams.lease_order(self.accelerator, self.executor)


@dataclass(frozen=True)
class ExecutorContext:
    bus: Bus
    me: Identity
    executable: Parkable
    locks: Locks
    tally: Tally
    budget_bytes: int
    """Of the device, for all its executors."""
    fence_tier: Tier = Tier.HOST
    """Where it parks itself without a confirmed lease."""
    history: History = field(default_factory=History)
    watchdog: Watchdog = field(default_factory=Watchdog)
    free_bytes: Callable[[], Awaitable[int | None]] = no_driver
    """Free memory of the device, as its driver says."""
    clock: Callable[[], float] = time.monotonic
    """This process's own, for the lease."""
    renew_s: float = RENEW_S
    memory_wait_s: float = MEMORY_WAIT_S
