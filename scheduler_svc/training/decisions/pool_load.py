"""Load of a pool: its clock, its capacity while parked, and oversubscription (in-flight work as a multiple of what samplers decode). Pure.

A pool on a shared accelerator is *parked* while none of its samplers is awake (docs/pools.md). Its clock then stands: parked time
ends no group, counts for no environment timeout and raises no warning. A parked pool is still admitted the work that its next slice
can begin with, so that its environments open and its tools work during the slices of others.

Oversubscription: a member is in flight from admission until it is scored, also while its tool works. If tools take ten times as long as
sampling, a factor that suits fast tools leaves the samplers idle nine tenths of the time. The factor therefore follows the samplers'
reports. It grows by a quarter while the admissible work is in flight and the samplers are not full. It shrinks when they are full, because
work that waits for a sampler would be sampled by a newer version if admitted later. It stops growing once a group has spent half of its
time, and returns to its minimum when a group nears its deadline: groups take ever longer if environments cannot keep up. On a shared
accelerator the pool's own clock counts, and only reports from awake samplers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from common.messages import PoolClock
from scheduler_svc.tenancy.decisions.shares import Capacity

StableFor = Callable[[str], float]
"""Pool name → seconds since the last disturbance, on the pool's clock."""
PARKED_FACTOR = 1.0
"""Limit of a parked pool's work in flight, as a multiple of its samplers' concurrent sequences."""


@dataclass(frozen=True)
class PoolTimes:
    """Clocks of pools now. Pools without a clock were never parked."""

    now_s: float
    """Current time by NATS, in Unix seconds."""
    clocks: Mapping[str, PoolClock] = field(default_factory=dict[str, PoolClock])

    def of(self, pool: str) -> float:
        """Current time on the pool's clock, which its deadlines use."""
        return self.now_s - self.parked_s(pool)

    def parked_s(self, pool: str) -> float:
        """Total seconds for which the pool was parked until now."""
        return self.clocks[pool].parked_until_s(self.now_s) if pool in self.clocks else 0.0

    @property
    def parked(self) -> frozenset[str]:
        """Pools that are parked now."""
        return frozenset(pool for pool, clock in self.clocks.items() if clock.parked_since_s is not None)


def capacities(decoded: Mapping[str, Capacity], factor: Callable[[str], float], parked: frozenset[str]) -> dict[str, Capacity]:
    """Capacity for in-flight work by pool. `decoded`: what its samplers decode concurrently. `factor`: oversubscription while awake."""
    return {pool: whole.times(min(factor(pool), PARKED_FACTOR) if pool in parked else factor(pool)) for pool, whole in decoded.items()}


ADJUSTMENT_S = 15.0
"""Seconds of observation between two adjustments: several reports of each replica, and time for new work to reach the samplers."""
IDLE_SHARE, FULL_SHARE = 0.75, 0.95
"""Thresholds on the maximum share of sampler capacity in use since the last adjustment: idle below, full from."""
IN_USE = 0.9
"""Share of the admissible load in flight from which admission is considered the bottleneck."""
LATE, TOO_LATE = 0.5, 0.75
"""Shares of its time until the deadline spent by the oldest group: no growth from the first, reset to the minimum from the second."""
GROWTH, DECAY = 1.25, 0.9


@dataclass(frozen=True)
class PoolLoad:
    """Load of one pool at one moment."""

    sequences: int
    """Sequences that the pool's awake samplers can decode concurrently; positive."""
    sampled: float
    """Sequences that these samplers are decoding."""
    used: float
    """Share of the admissible load that is in flight; 0 when none is."""
    spent: float
    """Largest share of its time until the deadline spent by an open group; 0 if no group is open."""


@dataclass
class _Pool:
    factor: float
    now_s: float
    """Time on the pool's clock at the latest observation."""
    observed_s: float = 0.0
    """Observed seconds since the last adjustment."""
    max_sampled: float = 0.0
    """Maximum share of the samplers' sequences in use since the last adjustment."""
    max_used: float = 0.0


class OversubscriptionController:
    """Oversubscription factor by pool, from `minimum` (initial) to `maximum`."""

    def __init__(self, minimum: float, maximum: float) -> None:
        self._minimum = minimum
        self._maximum = max(minimum, maximum)
        self._pools: dict[str, _Pool] = {}

    def factor(self, pool: str) -> float:
        return self._pools[pool].factor if pool in self._pools else self._minimum

    def observe(self, pool: str, seen: PoolLoad | None, now_s: float) -> None:
        """Adjust the pool's factor. Called periodically while the pool is not parked.

        `seen`: load since the last call; None if no sampler has reported since it woke, or serving withholds sequences: the samplers then
        seem full or empty for reasons that more or less work in flight does not change. `now_s`: time on the pool's clock.
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
