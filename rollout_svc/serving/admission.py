"""Places of served requests in the engine: a seat and, for a version, an adapter slot, granted together and in fair order.

Rollouts have guaranteed places because serving never takes more than its own here; the engine's scheduler is the other half.

A request never holds one of both while it waits for the other. Where the request whose turn it is finds no slot, requests that need
none, or whose adapter is in use, are served before it; but one adapter, that of the fewest requests, gets no new ones until its slot is
free, so that the wait ends.

No tenant has the last seats: requests of a burst begin together, and end together, so that another tenant's first one would wait for all
of their tokens. They cost little: the engine's steps are as much shorter as it has fewer sequences.
"""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from common.fairness.fair_queue import Claimant
from common.fairness.fair_slots import FairSlots

KEPT_SHARE = 8
"""One of so many seats is kept for tenants that have fewer than are kept."""


@dataclass
class Place:
    """A request's place. `tokens`: those that it was given, for the fairness of later ones."""

    tokens: int = 0


class Admission:
    """Waiting requests are ordered by tenants, by weight, and then by keys."""

    def __init__(self, sequences: int, adapters: int) -> None:
        self._seats = FairSlots(sequences, kept=sequences // KEPT_SHARE, beside=AdapterSlots(adapters))

    @property
    def waiting(self) -> int:
        return self._seats.waiting

    @asynccontextmanager
    async def place(self, claimant: Claimant, adapter: str | None) -> AsyncGenerator[Place]:
        """`adapter`: its name; None for the base model, which needs no slot."""
        await self._seats.acquire(claimant, adapter)
        place = Place()
        try:
            yield place
        finally:
            self._seats.release(claimant, float(place.tokens), adapter)


class AdapterSlots:
    """At most `total` different names at a time; None is no name, and needs no slot. Pure."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._users: Counter[str] = Counter()
        self._wanted: str | None = None
        self._draining: str | None = None
        """Name that gets no more users until its slot is free for the wanted one."""

    def want(self, name: str | None) -> None:
        """The name whose turn it is; the slot that is being freed for one before it is kept for it."""
        has_slot = name is None or name in self._users
        self._wanted = None if has_slot else name
        if self._wanted is None or len(self._users) < self._total:
            self._draining = None
        elif self._draining not in self._users:
            self._draining = min(self._users, key=self._users.__getitem__)

    def fits(self, name: str | None) -> bool:
        """Whether a request may begin."""
        if name is None or (name in self._users and name != self._draining):
            return True
        is_free = name not in self._users and len(self._users) < self._total
        return is_free and self._wanted in (None, name)

    def take(self, name: str | None) -> None:
        if name is not None:
            self._users[name] += 1

    def release(self, name: str | None) -> None:
        if name is not None:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name]
