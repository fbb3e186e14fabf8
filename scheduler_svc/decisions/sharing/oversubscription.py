"""Oversubscription: how far a pool's work in flight may exceed what its samplers decode concurrently. Pure.

A member is in flight from admission until it is scored, also while its tool works. Where tools take ten times as long as sampling, a
factor that suits fast tools leaves the samplers idle nine tenths of the time. The factor therefore follows the samplers' reports: it
grows by a quarter while all that may be in flight is, and the samplers are not full. It shrinks when they are full, because what
waits for a sampler would be sampled by a newer version if it were admitted later.

More work does not help where the environments cannot keep up: groups then take ever longer. The factor stops growing once a group has
spent half of its time, and returns to its minimum when one nears its deadline.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

ADJUSTMENT_S = 15.0
"""Seconds between two adjustments: several reports of each replica, and time for new work to reach the samplers."""
IDLE_SHARE, FULL_SHARE = 0.75, 0.95
"""Shares of the samplers' capacity below which they are idle, and from which they are full, by the maximum since the last adjustment."""
IN_USE = 0.9
"""Share of the admissible load in flight from which admission is the limit."""
LATE, TOO_LATE = 0.5, 0.75
"""Share of its time until the deadline that the oldest group has spent: no growth, and back to the minimum."""
GROWTH, DECAY = 1.25, 0.9


@dataclass(frozen=True)
class PoolLoad:
    """Load of one pool at one moment."""

    sequences: int
    """Sequences that its samplers can decode concurrently."""
    sampled: float
    """Sequences that they are decoding."""
    used: float
    """Share of the admissible load that is in flight; 0 when none is."""
    spent: float
    """Largest share of its time that an open group has spent; 0 when none is open."""


@dataclass
class _Pool:
    factor: float
    since_s: float
    max_sampled: float = 0.0
    max_used: float = 0.0


class OversubscriptionController:
    """Factors by pool, between `minimum`, the first, and `maximum`."""

    def __init__(self, minimum: float, maximum: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._minimum = minimum
        self._maximum = max(minimum, maximum)
        self._clock = clock
        self._pools: dict[str, _Pool] = {}

    def factor(self, pool: str) -> float:
        return self._pools[pool].factor if pool in self._pools else self._minimum

    def pause(self, pool: str) -> None:
        """Keep the pool's factor while it is parked: samplers that may not compute say nothing about environments."""
        if pool in self._pools:
            self._pools[pool] = _Pool(self._pools[pool].factor, self._clock())

    def observe(self, pool: str, seen: PoolLoad) -> None:
        """Adjust the pool's factor. Called periodically."""
        state = self._pools.setdefault(pool, _Pool(self._minimum, self._clock()))
        if not seen.used or seen.spent >= TOO_LATE:
            self._pools[pool] = _Pool(self._minimum, self._clock())
            return
        state.max_sampled = max(state.max_sampled, seen.sampled)
        state.max_used = max(state.max_used, seen.used)
        if self._clock() - state.since_s < ADJUSTMENT_S:
            return
        if state.max_sampled >= FULL_SHARE * seen.sequences:
            factor = max(self._minimum, state.factor * DECAY)
        elif state.max_sampled < IDLE_SHARE * seen.sequences and state.max_used >= IN_USE and seen.spent < LATE:
            factor = min(self._maximum, state.factor * GROWTH)
        else:
            factor = state.factor
        self._pools[pool] = _Pool(factor, self._clock())
