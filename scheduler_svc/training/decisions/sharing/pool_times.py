"""Clocks of pools at one moment, and what a parked pool is admitted. Pure.

A pool on a shared accelerator is *parked* while none of its samplers is awake (docs/pools.md). Its clock then stands: time that its
work could not use ends no group, excuses no environment and warns nobody. It is admitted what its next slice can begin with, so that
its environments open and its tools work during the slices of others.
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
