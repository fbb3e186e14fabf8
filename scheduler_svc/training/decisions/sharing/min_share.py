"""Minimum shares: the part of a pool's capacity that each tenant and task is guaranteed. Pure.

Capacity is held from admission until the score is stored. A member that waits for its environment holds as much as one that is being
sampled, but consumes no tokens. By tokens alone (`fair_share.py`) a tenant with a slow environment would stay the least served and
come to hold the whole pool. Each tenant with work waiting or in flight is therefore guaranteed a part of its weighted fair share of
the capacity, and each of its tasks a part of that: below its minimum share it goes first. Beyond that tokens decide, so unused shares
are available to others. The rule is that of minimum shares in YARN's fair scheduler.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from scheduler_svc.tenancy.decisions.shares import Capacity, InFlight, Load, TaskShare, TenantShare

GUARANTEED_FRACTION = 0.5
"""Guaranteed fraction of a tenant's weighted fair share. Below 1, two tenants may still hold 3 to 1 where that balances their tokens."""


class MinShares:
    """Minimum shares of one pool, for the tenants and tasks with work in flight (`in_flight`) or waiting (`tasks`)."""

    def __init__(self, capacity: Capacity, in_flight: InFlight, tasks: Iterable[TaskShare], tenants: Mapping[str, TenantShare]) -> None:
        self._capacity = capacity
        self._in_flight = in_flight
        waiting = {(task.tenant, task.task) for task in tasks if task.allowance > 0}
        weights = in_flight.weights | {tenant: tenants[tenant].weight for tenant, _ in waiting}
        contenders = Counter(tenant for tenant, _ in waiting | in_flight.tasks.keys())
        whole = sum(weights.values())
        self._of_tenant = {tenant: GUARANTEED_FRACTION * weight / whole for tenant, weight in weights.items()}
        self._of_each_task = {tenant: self._of_tenant[tenant] / count for tenant, count in contenders.items()}

    def tenant_is_below(self, tenant: str) -> bool:
        return self._in_flight.tenants.get(tenant, Load()).share_of(self._capacity) < self._of_tenant[tenant]

    def task_is_below(self, tenant: str, task: str) -> bool:
        return self._in_flight.tasks.get((tenant, task), Load()).share_of(self._capacity) < self._of_each_task[tenant]

    def room_for(self, tasks: Iterable[TaskShare]) -> int:
        """Maximum number of groups that fit, by the smallest of `tasks`; at least 1."""
        room = self._capacity.sequences - self._in_flight.total.sequences
        return max(1, int(room // min((task.group_size for task in tasks), default=1)))

    def satisfied_tenants(self) -> set[str]:
        """Tenants with work in flight that have their minimum share."""
        return {tenant for tenant in self._in_flight.tenants if not self.tenant_is_below(tenant)}

    def satisfied_tasks(self) -> set[str]:
        """Tasks with work in flight that have their minimum share."""
        return {task for tenant, task in self._in_flight.tasks if not self.task_is_below(tenant, task)}


def min_shares(
    tasks: Iterable[TaskShare],
    tenants: Mapping[str, TenantShare],
    capacities: Mapping[str, Capacity],
    in_flight: Mapping[str, InFlight],
) -> dict[str, MinShares]:
    """Minimum shares of each pool of `capacities`, where `tasks` wait."""
    by_pool: dict[str, list[TaskShare]] = {pool: [] for pool in capacities}
    for task in tasks:
        if task.pool in by_pool:
            by_pool[task.pool].append(task)
    return {pool: MinShares(capacities[pool], in_flight.get(pool, InFlight()), found, tenants) for pool, found in by_pool.items()}
