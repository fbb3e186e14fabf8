"""Oversubscription: how far a pool's work in flight may exceed what its samplers decode concurrently. Pure.

A member is in flight from admission until it is scored, also while its tool works. Where tools take ten times as long as sampling, a
factor that suits fast tools leaves the samplers idle nine tenths of the time. The factor therefore follows the samplers' reports: it
grows by a quarter while all that may be in flight is, and the samplers are not full. It shrinks when they are full, because what
waits for a sampler would be sampled by a newer version if it were admitted later.

More work does not help where the environments cannot keep up: groups then take ever longer. The factor stops growing once a group has
spent half of its time, and returns to its minimum when one nears its deadline.

On a shared accelerator the pool's own clock counts, and only what samplers reported while awake: parked ones decode nothing, which says
nothing about environments.
"""

from dataclasses import dataclass

ADJUSTMENT_S = 15.0
"""Seconds of observation between two adjustments: several reports of each replica, and time for new work to reach the samplers."""
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
    """Sequences that its samplers can decode concurrently, of those that are awake; positive."""
    sampled: float
    """Sequences that they are decoding."""
    used: float
    """Share of the admissible load that is in flight; 0 when none is."""
    spent: float
    """Largest share of its time that an open group has spent; 0 when none is open."""


@dataclass
class _Pool:
    factor: float
    now_s: float
    """The pool's time at the latest observation."""
    observed_s: float = 0.0
    """Time since the last adjustment of which something is known."""
    max_sampled: float = 0.0
    """Share of the samplers' sequences."""
    max_used: float = 0.0


class OversubscriptionController:
    """Factors by pool, between `minimum`, the first, and `maximum`."""

    def __init__(self, minimum: float, maximum: float) -> None:
        self._minimum = minimum
        self._maximum = max(minimum, maximum)
        self._pools: dict[str, _Pool] = {}

    def factor(self, pool: str) -> float:
        return self._pools[pool].factor if pool in self._pools else self._minimum

    def observe(self, pool: str, seen: PoolLoad | None, now_s: float) -> None:
        """Adjust the pool's factor. Called periodically while the pool is not parked.

        `seen`: None where no sampler has reported since it woke. `now_s`: the pool's time; what passed since the last call is observed.
        """
        state = self._pools.setdefault(pool, _Pool(self._minimum, now_s))
        passed_s, state.now_s = max(0.0, now_s - state.now_s), now_s
        if seen is None:
            return
        if not seen.used or seen.spent >= TOO_LATE:
            self._pools[pool] = _Pool(self._minimum, now_s)
            return
        state.observed_s += passed_s
        state.max_sampled = max(state.max_sampled, seen.sampled / seen.sequences)
        state.max_used = max(state.max_used, seen.used)
        if state.observed_s < ADJUSTMENT_S:
            return
        if state.max_sampled >= FULL_SHARE:
            factor = max(self._minimum, state.factor * DECAY)
        elif state.max_sampled < IDLE_SHARE and state.max_used >= IN_USE and seen.spent < LATE:
            factor = min(self._maximum, state.factor * GROWTH)
        else:
            factor = state.factor
        self._pools[pool] = _Pool(factor, now_s)
