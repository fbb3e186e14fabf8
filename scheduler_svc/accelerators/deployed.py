"""Accelerators and executors of the pools file."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.accelerators import Tier
from common.pools import Accelerator, Place, Pools, places

Key = tuple[str, str]
"""Accelerator and executor names."""


@dataclass(frozen=True)
class Deployed:
    """Deployed accelerators and executors; empty if no accelerator is shared."""

    accelerators: Mapping[str, Accelerator] = field(default_factory=dict[str, Accelerator])
    places: Mapping[Key, Place] = field(default_factory=dict[Key, Place])
    deepest: Mapping[str, Tier] = field(default_factory=dict[str, Tier])
    """Deepest tier in which an executor of the pool may be parked, by pool."""
    kept_awake: frozenset[Key] = frozenset()
    """Samplers alone on their accelerator that are served: awake from their start, also without tasks."""

    @classmethod
    def of(cls, accelerators: Mapping[str, Accelerator], pools: Pools) -> "Deployed":
        found = {(place.accelerator, place.executor): place for place in places(pools) if place.accelerator in accelerators}
        kept_awake = frozenset(key for key, place in found.items() if place.service == "rollout" and pools[place.pool].stays_awake)
        return cls(accelerators, found, {name: pool.deepest_tier for name, pool in pools.items()}, kept_awake)

    @property
    def pools(self) -> set[str]:
        """Pools with an executor on a shared accelerator."""
        return {place.pool for place in self.places.values()}

    @property
    def sampled(self) -> set[str]:
        """Pools with a sampler on a shared accelerator."""
        return {place.pool for place in self.places.values() if place.service == "rollout"}


NOTHING_SHARED = Deployed()
