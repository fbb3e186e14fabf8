"""Who holds a pool's places, and who is short of the share that nobody may take from them. Pure.

A place is taken from admission until the score is there. A member that waits for its environment takes one as well as one that is
sampled, but consumes no tokens; so by tokens alone (`fair_share.py`) a tenant whose environment is slow would stay the least served
one, and come to hold all places. Each tenant that wants or holds places of a pool is therefore owed a part of its weighted share of
them, and each of its tasks a part of the tenant's: who holds less goes first. Beyond that tokens decide, so what one does not use
others may.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scheduler_svc.decisions.fair_share import TaskShare, TenantShare

OWED = 0.5
"""Of somebody's share of the places. Not all of it: two tenants may still hold places as 3 to 1 where that evens out their tokens."""


@dataclass(frozen=True)
class Capacity:
    """Of one pool, summed over its live rollout replicas."""

    sequences: float
    kv_tokens: float


@dataclass(frozen=True)
class Load:
    """Sequences, and the KV-cache tokens that they may come to."""

    sequences: int = 0
    tokens: float = 0.0

    def __add__(self, other: "Load") -> "Load":
        return Load(self.sequences + other.sequences, self.tokens + other.tokens)

    def fits(self, capacity: Capacity) -> bool:
        return self.sequences <= capacity.sequences and self.tokens <= capacity.kv_tokens

    def share_of(self, capacity: Capacity) -> float:
        """Of whichever it takes more of. The pool has a live replica."""
        return max(self.sequences / capacity.sequences, self.tokens / capacity.kv_tokens if capacity.kv_tokens else 0.0)


@dataclass
class InFlight:
    """Admitted and not yet scored, in one pool."""

    total: Load = Load()
    tenants: dict[str, Load] = field(default_factory=dict)
    tasks: dict[tuple[str, str], Load] = field(default_factory=dict)
    """By tenant and task."""
    weights: dict[str, float] = field(default_factory=dict)
    """Of these tenants."""

    def add(self, tenant: str, weight: float, task: str, load: Load) -> None:
        self.total += load
        self.tenants[tenant] = self.tenants.get(tenant, Load()) + load
        self.tasks[tenant, task] = self.tasks.get((tenant, task), Load()) + load
        self.weights[tenant] = weight


class MinShares:
    """Who is owed places of one pool: they who hold some (`in_flight`), and they who want some (`tasks`)."""

    def __init__(self, capacity: Capacity, in_flight: InFlight, tasks: Iterable[TaskShare], tenants: Mapping[str, TenantShare]) -> None:
        self._capacity = capacity
        self._in_flight = in_flight
        wanting = {(task.tenant, task.task) for task in tasks if task.allowance > 0}
        weights = in_flight.weights | {tenant: tenants[tenant].weight for tenant, _ in wanting}
        contenders = Counter(tenant for tenant, _ in wanting | in_flight.tasks.keys())
        whole = sum(weights.values())
        self._owed = {tenant: OWED * weight / whole for tenant, weight in weights.items()}
        self._owed_a_task = {tenant: self._owed[tenant] / count for tenant, count in contenders.items()}

    def tenant_is_short(self, tenant: str) -> bool:
        return self._in_flight.tenants.get(tenant, Load()).share_of(self._capacity) < self._owed[tenant]

    def task_is_short(self, tenant: str, task: str) -> bool:
        return self._in_flight.tasks.get((tenant, task), Load()).share_of(self._capacity) < self._owed_a_task[tenant]

    def room_for(self, tasks: Iterable[TaskShare]) -> int:
        """No more groups than these fit in, the smallest of `tasks`; one always does."""
        room = self._capacity.sequences - self._in_flight.total.sequences
        return max(1, int(room // min((task.group_size for task in tasks), default=1)))

    def tenants_with_enough(self) -> set[str]:
        return {tenant for tenant in self._in_flight.tenants if not self.tenant_is_short(tenant)}

    def tasks_with_enough(self) -> set[str]:
        return {task for tenant, task in self._in_flight.tasks if not self.task_is_short(tenant, task)}
