"""Admission of served requests: a sequence slot and, for a version, an adapter slot, granted together and in fair order.

Serving never takes more than its own places here, which guarantees rollouts theirs; the engine's scheduler guarantees serving's.

A request never holds one slot while it waits for the other. If the next request finds no adapter slot, requests that need none, or whose
adapter is in use, are served before it. Meanwhile the adapter with the fewest requests gets no new ones until its slot is free, so that
the wait ends.

The last sequence slots are kept for tenants with few requests: requests of a burst begin and end together, so another tenant's first
request would wait for all of their tokens. The unused slots cost little: engine steps with fewer sequences are shorter.
"""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from common.fairness.fair_queue import Claimant
from common.fairness.fair_slots import KEPT_SHARE, FairSlots


@dataclass
class Place:
    """An admitted request's place. `tokens`: its prompt and sampled tokens so far, which count in the fair order of later requests."""

    tokens: int = 0


class Admission:
    """Admits waiting requests fairly: by tenant weight, then by key."""

    def __init__(self, sequences: int, adapters: int) -> None:
        self._seats = FairSlots(sequences, kept=sequences // KEPT_SHARE, beside=AdapterSlots(adapters))

    @property
    def waiting(self) -> int:
        return self._seats.waiting

    @asynccontextmanager
    async def place(self, claimant: Claimant, adapter: str | None) -> AsyncGenerator[Place]:
        """Hold a place in the block. `adapter`: the adapter's name; None for the base model, which needs no adapter slot."""
        await self._seats.acquire(claimant, adapter)
        place = Place()
        try:
            yield place
        finally:
            self._seats.release(claimant, float(place.tokens), adapter)


class AdapterSlots:
    """At most `total` different adapter names in use at a time; None (the base model) needs no slot. Pure."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._users: Counter[str] = Counter()
        self._wanted: str | None = None
        self._draining: str | None = None
        """Name that gets no new users, so that its slot becomes free for the wanted name."""

    def want(self, name: str | None) -> None:
        """Set the name of the next request in fair order; a slot that is already being freed stays reserved for it."""
        has_slot = name is None or name in self._users
        self._wanted = None if has_slot else name
        if self._wanted is None or len(self._users) < self._total:
            self._draining = None
        elif self._draining not in self._users:
            self._draining = min(self._users, key=self._users.__getitem__)

    def fits(self, name: str | None) -> bool:
        """Whether a request with this name may begin."""
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
