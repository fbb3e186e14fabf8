"""Slots of a shared resource, granted to waiting claimants in the order of a fair queue (`fair_queue.py`)."""

import asyncio

from common.fairness.fair_queue import Claimant, FairQueue


class FairSlots:
    """`total` slots, of which no task has more than `max_per_task`."""

    def __init__(self, total: int, max_per_task: int | None = None) -> None:
        self._total = total
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue(max_per_task or total)

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    async def acquire(self, claimant: Claimant) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put(claimant, turn)
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            self._queue.discard(claimant, turn)
            if turn.done() and not turn.cancelled():
                self.release(claimant, 0.0)
            raise

    def release(self, claimant: Claimant, service: float) -> None:
        """`service`: what the claimant received in its slot, in seconds; 0 when it did not begin."""
        self._queue.done(claimant, service)
        self._grant()

    def _grant(self) -> None:
        while self._queue.running < self._total and (item := self._queue.take()) is not None:
            claimant, turn = item
            if turn.cancelled():
                self._queue.done(claimant, 0.0)
                continue
            turn.set_result(None)
