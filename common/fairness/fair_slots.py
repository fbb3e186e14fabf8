"""Slots of a shared resource, granted to waiting claimants in the order of a fair queue (`fair_queue.py`)."""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from common.fairness.fair_queue import Claimant, FairQueue

KEPT_SHARE = 8
"""One in KEPT_SHARE places of serving is kept for tenants that hold fewer than that number."""


class Beside(Protocol):
    """A named resource that a slot's holder may need in addition to its slot. A claimant has both, or waits without either."""

    def want(self, name: str | None) -> None:
        """Announce the name that the claimant whose turn it is needs; None: it needs none, or there is no such claimant."""
        ...

    def fits(self, name: str | None) -> bool:
        """Whether a claimant may take the resource `name` now; if not, other claimants are served first. No side effect."""
        ...

    def take(self, name: str | None) -> None: ...

    def release(self, name: str | None) -> None: ...


@dataclass(eq=False)
class _Waiting:
    turn: asyncio.Future[None]
    tenant: str
    name: str | None


class FairSlots:
    """`total` slots, at most `max_per_task` per task. The last `kept` are reserved for tenants that hold fewer than `kept`."""

    def __init__(self, total: int, max_per_task: int | None = None, *, kept: int = 0, beside: Beside | None = None) -> None:
        self._total = total
        self._kept = kept
        self._beside = beside
        self._queue: FairQueue[_Waiting] = FairQueue(max_per_task or total)

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    @property
    def running(self) -> int:
        """Number of slots taken."""
        return self._queue.running

    async def acquire(self, claimant: Claimant, name: str | None = None) -> None:
        """Wait for a slot. `name`: name of the additional resource; None: none is needed."""
        waiting = _Waiting(asyncio.get_running_loop().create_future(), claimant.tenant, name)
        self._queue.put(claimant, waiting)
        self._grant()
        try:
            await waiting.turn
        except asyncio.CancelledError:
            self._queue.discard(claimant, waiting)
            if waiting.turn.done() and not waiting.turn.cancelled():
                self.release(claimant, 0.0, name)
            else:
                self._grant()  # others may have waited behind it
            raise

    def release(self, claimant: Claimant, service: float, name: str | None = None) -> None:
        """Release a slot. `service`: seconds or tokens that the claimant received in it; 0 if it did not start."""
        if self._beside is not None:
            self._beside.release(name)
        self._queue.done(claimant, service)
        self._grant()

    def _grant(self) -> None:
        while self._queue.running < self._total:
            if self._beside is not None:
                first = self._queue.first(self._has_slot)
                self._beside.want(None if first is None else first.name)
            item = self._queue.take(self._may_begin)
            if item is None:
                return
            claimant, waiting = item
            if waiting.turn.cancelled():
                self._queue.done(claimant, 0.0)
                continue
            if self._beside is not None:
                self._beside.take(waiting.name)
            waiting.turn.set_result(None)

    def _has_slot(self, waiting: _Waiting) -> bool:
        """Whether the tenant may take a free slot: the last `kept` are reserved."""
        return self._queue.running < self._total - self._kept or self._queue.running_of(waiting.tenant) < self._kept

    def _may_begin(self, waiting: _Waiting) -> bool:
        return self._has_slot(waiting) and (self._beside is None or self._beside.fits(waiting.name))
