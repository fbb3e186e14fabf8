"""Places of served requests in the engine: seats, granted fairly, and adapter slots, granted in order.

Rollouts have guaranteed places because serving never takes more than its own here; the engine's scheduler is the other half.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from common.fairness.fair_queue import Claimant
from common.fairness.fair_slots import FairSlots


@dataclass
class Place:
    """A request's place. `tokens`: those that it was given, for the fairness of later ones."""

    tokens: int = 0


class Admission:
    """Waiting requests are ordered by tenants, by weight, and then by keys."""

    def __init__(self, sequences: int, adapters: int) -> None:
        self._seats = FairSlots(sequences)
        self._slots = AdapterSlots(adapters)

    @property
    def waiting(self) -> int:
        return self._seats.waiting

    @asynccontextmanager
    async def place(self, claimant: Claimant, adapter: str | None) -> AsyncGenerator[Place]:
        """`adapter`: its name; None for the base model, which needs no slot."""
        place = Place()
        await self._seats.acquire(claimant)
        try:
            if adapter is None:
                yield place
            else:
                await self._slots.acquire(adapter)
                try:
                    yield place
                finally:
                    self._slots.release(adapter)
        finally:
            self._seats.release(claimant, float(place.tokens))


class AdapterSlots:
    """At most `total` different names at once. In order: later requests of a name that is in use do not keep an earlier one waiting."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._users: Counter[str] = Counter()
        self._queue: deque[tuple[str, asyncio.Future[None]]] = deque()

    async def acquire(self, name: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((name, turn))
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(name)
            else:
                self._grant()
            raise

    def release(self, name: str) -> None:
        self._users[name] -= 1
        if not self._users[name]:
            del self._users[name]
        self._grant()

    def _grant(self) -> None:
        while self._queue:
            name, turn = self._queue[0]
            if not turn.done():
                if name not in self._users and len(self._users) >= self._total:
                    return
                self._users[name] += 1
                turn.set_result(None)
            self._queue.popleft()
