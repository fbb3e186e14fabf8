"""Which requests are sent to replicas, and which wait here.

Replicas take requests in the order of the queue, several for each that they answer concurrently, and are fair among those that they have. A
tenant that sends a thousand requests would fill the queue, and another's request would wait behind all of these. So of each tenant
and pool only some are sent and have no token yet; the others wait here, fair by key.
"""

from collections.abc import Callable
from contextlib import ExitStack

from common.fairness.fair_queue import Claimant
from common.fairness.fair_slots import FairSlots

AT_ONCE = 8
"""Requests of one tenant and pool that are sent and have no token. Fewer than a replica takes, so that one tenant's never fill what it
takes; enough to begin some hundred requests a second."""


class SendWindow:
    """Of one process."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._slots: dict[tuple[str, str], FairSlots] = {}
        """By pool and tenant."""

    @property
    def waiting(self) -> int:
        return sum(slots.waiting for slots in self._slots.values())

    async def begin(self, pool: str, tenant: str, key: str | None) -> Callable[[], None]:
        """Waits until a request may be sent. The function that it returns must be called when the request has its first token, or
        ends; more calls do nothing."""
        place, claimant = (pool, tenant), Claimant(key or "none", "requests")
        slots, ending = self._slots.setdefault(place, FairSlots(self._at_once)), ExitStack()
        ending.callback(self._forget_idle, place)
        with ending:
            await slots.acquire(claimant)
            ending.callback(slots.release, claimant, 1.0)
            return ending.pop_all().close

    def _forget_idle(self, place: tuple[str, str]) -> None:
        slots = self._slots.get(place)
        if slots is not None and not slots.waiting and not slots.running:
            del self._slots[place]
