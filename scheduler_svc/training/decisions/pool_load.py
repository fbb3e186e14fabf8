"""Load of a pool: its clock, what it is admitted while it is parked, and how far work in flight may exceed what its samplers decode. Pure.

A pool on a shared accelerator is *parked* while none of its samplers is awake (docs/pools.md). Its clock then stands: time that its
work could not use ends no group, excuses no environment and warns nobody. It is admitted what its next slice can begin with, so that
its environments open and its tools work during the slices of others.

Oversubscription: a member is in flight from admission until it is scored, also while its tool works. Where tools take ten times as long as
sampling, a factor that suits fast tools leaves the samplers idle nine tenths of the time. The factor therefore follows the samplers'
reports: it grows by a quarter while all that may be in flight is, and the samplers are not full. It shrinks when they are full, because
what waits for a sampler would be sampled by a newer version if it were admitted later. It stops growing once a group has spent half of its
time, and returns to its minimum when one nears its deadline: groups take ever longer where environments cannot keep up. On a shared
accelerator the pool's own clock counts, and only what samplers reported while awake.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from common.messages import PoolClock
from scheduler_svc.tenancy.decisions.shares import Capacity

StableFor = Callable[[str], float]
"""Seconds since the last disturbance, in the time of a pool given by name."""
PARKED_FACTOR = 1.0
"""Work in flight of a parked pool, as a multiple of what its samplers decode concurrently."""


@dataclass(frozen=True)
class PoolTimes:
    """Pools without a clock were never parked."""

    now_s: float
    """NATS's time."""
    clocks: Mapping[str, PoolClock] = field(default_factory=dict[str, PoolClock])

    def of(self, pool: str) -> float:
        """The pool's time, in which its deadlines are."""
        return self.now_s - self.parked_s(pool)

    def parked_s(self, pool: str) -> float:
        """Seconds for which the pool was parked until now, in all."""
        return self.clocks[pool].parked_until_s(self.now_s) if pool in self.clocks else 0.0

    @property
    def parked(self) -> frozenset[str]:
        """Pools that are parked."""
        return frozenset(pool for pool, clock in self.clocks.items() if clock.parked_since_s is not None)


def capacities(decoded: Mapping[str, Capacity], factor: Callable[[str], float], parked: frozenset[str]) -> dict[str, Capacity]:
    """Capacity for work in flight by pool. `decoded`: what its samplers decode concurrently; `factor`: its oversubscription while awake."""
    return {pool: whole.times(min(factor(pool), PARKED_FACTOR) if pool in parked else factor(pool)) for pool, whole in decoded.items()}


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
