"""Which requests are sent to replicas, and which wait here.

Replicas take requests in the order of the queue, several for each that they answer at once, and are fair among those that they have. A
tenant that asks a thousand times at once would fill the queue, and another's request would wait behind all of these. So of each tenant
and pool only some are sent and have no token yet; the others wait here, fair by key.
"""

import asyncio
from collections.abc import Callable

from common.fairness.fair_queue import Claimant, FairQueue

AT_ONCE = 8
"""Requests of one tenant and pool that are sent and have no token. Fewer than a replica takes, so that one tenant's never fill what it
takes; enough to begin some hundred requests a second."""

Turn = asyncio.Future[None]


class Turns:
    """Of one process."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._queues: dict[tuple[str, str], FairQueue[Turn]] = {}

    @property
    def waiting(self) -> int:
        return sum(queue.waiting for queue in self._queues.values())

    async def begin(self, pool: str, tenant: str, key: str | None) -> Callable[[], None]:
        """Waits until a request may be sent. The function that it returns must be called when the request has its first token, or
        ends; more calls do nothing."""
        place, claimant, turn = (pool, tenant), Claimant(key or "none", "requests"), asyncio.get_running_loop().create_future()
        queue = self._queues.setdefault(place, FairQueue(self._at_once))
        queue.put(claimant, turn)
        self._grant(place)
        has_ended = False

        def end() -> None:
            nonlocal has_ended
            if not has_ended:
                has_ended = True
                queue.done(claimant, 1.0)
                self._grant(place)

        try:
            await turn
        except asyncio.CancelledError:
            queue.discard(claimant, turn)
            if turn.done() and not turn.cancelled():
                end()
            else:
                self._grant(place)
            raise
        return end

    def _grant(self, place: tuple[str, str]) -> None:
        queue = self._queues.get(place)
        if queue is None:
            return
        while queue.running < self._at_once and (item := queue.take()) is not None:
            claimant, turn = item
            if turn.cancelled():
                queue.done(claimant, 0.0)
            else:
                turn.set_result(None)
        if not queue.waiting and not queue.running:
            del self._queues[place]
