"""One environment of a package on this replica: its process while there is one, and the calls to it."""

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager

from common.fairness.fair_queue import Claimant
from common.fairness.fair_slots import FairSlots
from common.messages import BlobRef
from env_svc.packages.names import OwnEnvironmentKey
from env_svc.packages.sandboxes import OwnProcess

MAX_CONCURRENT_CALLS = 64
"""Maximum calls of a process whose environment does not compute; one that computes takes one at a time."""


class OwnHost:
    """Calls wait until its process is open to them, which `hosts.py` decides, and take turns by tasks."""

    def __init__(self, key: OwnEnvironmentKey, wheel: BlobRef) -> None:
        self.key = key
        self.wheel = wheel
        self.weight = 1.0
        self.tasks: set[str] = set()
        """Tasks that have called it and not ended."""
        self.process: OwnProcess | None = None
        self.has_place = False
        self.holder: asyncio.Task[None] | None = None
        """Holds its place; None without calls."""
        self.calls = 0
        """Calls that wait or run."""
        self.used_at = time.monotonic()
        self.failure: Exception | None = None
        self.failed_at = 0.0
        self.idle = asyncio.Event()
        """Set without calls."""
        self.vacant = asyncio.Event()
        """Set without running calls."""
        self.vacant.set()
        self._running = 0
        self._slots: FairSlots | None = None
        """Slots that calls may take; None while it is closed."""
        self._entered = FairSlots(1)
        """Slots of the running calls, also once it is closed."""
        self._opening: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @contextmanager
    def calling(self) -> Generator[None]:
        """Around a call, its wait included."""
        self.calls += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.calls -= 1
            self.used_at = time.monotonic()
            if not self.calls:
                self.idle.set()

    async def enter(self, claimant: Claimant) -> OwnProcess:
        """The process, for one call, until `leave`. Raises: the failure of its start."""
        while True:
            slots = self._slots
            if slots is None or self.process is None:
                await asyncio.shield(self._opening)
                continue
            await slots.acquire(claimant)
            if self._slots is slots:
                self._running += 1
                self.vacant.clear()
                return self.process
            slots.release(claimant, 0.0)

    def leave(self, claimant: Claimant, service_s: float) -> None:
        self._running -= 1
        if not self._running:
            self.vacant.set()
        self._entered.release(claimant, service_s)

    def open(self) -> None:
        """Let calls in: there is a process, and a place for it."""
        assert self.process is not None
        total = 1 if self.process.hello.cpu_bound else MAX_CONCURRENT_CALLS
        self._slots = self._entered = FairSlots(total, max(1, total - 1))
        self._opening.set_result(None)

    def close(self) -> None:
        """Let no further call in."""
        self._slots = None
        self._opening = asyncio.get_running_loop().create_future()

    def fail(self, error: Exception) -> None:
        """End the calls that wait."""
        self.failure, self.failed_at = error, time.monotonic()
        self._opening.set_exception(error)
        self._opening.exception()  # for asyncio's log, when no call is left
        self._opening = asyncio.get_running_loop().create_future()
