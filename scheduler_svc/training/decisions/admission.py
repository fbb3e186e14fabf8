"""Admission: how many groups of which task to open now, by pace, fairness and capacity. Pure.

Pace (DESIGN §6.3, AReaL's bound): a task may have admitted, void groups not counted,

    min(version + max_staleness + 1, steps) × groups_per_step

groups. With batching's rule (`decisions/batching.py`) no trained group is ever staler than the bound, and none is discarded for staleness.

Capacity: the sequences and KV-cache tokens that the pool's rollout replicas decode concurrently, times a factor for work that is being
graded (`pool_load.py`). When the next group in fair order does not fit, no smaller one overtakes it; with nothing in flight, one group is
always admitted.

Fair order: tenants below their minimum share go first. Then weighted fair queuing decides, over tenants and over each tenant's tasks, by
tokens consumed: each has a virtual time, the tokens charged divided by the tenant's weight, and the smallest goes next (Virtual Token
Counter, arXiv 2401.00588). A group is charged an estimate when admitted, corrected when it ends, so consumption counts. A new or resumed
tenant or task starts at the smallest virtual time of those active: it has neither a debt nor a credit.

Minimum shares: capacity is held from admission until the score is stored. A member that waits for its environment holds as much as one
that is being sampled, but consumes no tokens. By tokens alone a tenant with a slow environment would stay the least served and come to
hold the whole pool. Each tenant with work waiting or in flight is therefore guaranteed a part of its weighted fair share of the capacity,
and each of its tasks a part of that. Beyond that tokens decide, so unused shares are available to others. The rule is that of minimum
shares in YARN's fair scheduler.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from scheduler_svc.tenancy.decisions.budgets import GroupBound
from scheduler_svc.tenancy.decisions.shares import Capacity, InFlight, Load, Place, TaskShare, TenantShare

# ------------------------------------------------------------------------------------------------------- minimum shares

GUARANTEED_FRACTION = 0.5
"""Guaranteed fraction of a tenant's weighted fair share. Below 1, two tenants may still hold 3 to 1 if that balances their tokens."""


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
        """Maximum number of groups that fit the pool, by the smallest group size of `tasks`; at least 1."""
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
    """Minimum shares by pool, for the pools in `capacities`. `tasks`: tasks that may open groups."""
    by_pool: dict[str, list[TaskShare]] = {pool: [] for pool in capacities}
    for task in tasks:
        if task.pool in by_pool:
            by_pool[task.pool].append(task)
    return {pool: MinShares(capacities[pool], in_flight.get(pool, InFlight()), found, tenants) for pool, found in by_pool.items()}


# ----------------------------------------------------------------------------------------------------------- fair share


def next_task(tasks: Iterable[TaskShare], tenants: Mapping[str, TenantShare], guaranteed: Mapping[str, MinShares]) -> TaskShare | None:
    """The task that may open the next group; None when no task has an allowance. `guaranteed`: minimum shares by pool.

    Order: tenants below their minimum share, the least-served tenant; within it the highest priority, tasks below their minimum
    share, the least-served task, its evaluations before its training; ids break ties.
    """
    waiting: dict[tuple[str, str], list[TaskShare]] = {}
    for task in tasks:
        if task.allowance > 0:
            waiting.setdefault((task.tenant, task.pool), []).append(task)

    def rank_of_tenant(key: tuple[str, str]) -> tuple[object, ...]:
        tenant, pool = key
        return not guaranteed[pool].tenant_is_below(tenant), tenants[tenant].virtual_time, tenant

    def rank_of_task(task: TaskShare) -> tuple[object, ...]:
        is_below = guaranteed[task.pool].task_is_below(task.tenant, task.task)
        return -task.priority, not is_below, task.virtual_time, task.task, not task.evaluates

    first = min(map(rank_of_tenant, waiting), default=None)
    candidates = [task for key, found in waiting.items() if rank_of_tenant(key) == first for task in found]
    return min(candidates, key=rank_of_task, default=None)


def starting_virtual_time(own: float, active: Collection[float], past: float = 0.0) -> float:
    """Virtual time of a tenant or task that becomes active: at least the minimum of `active`.
    `past`: largest virtual time ever reached; used if no other tenant or task is active."""
    return max(own, min(active) if active else past)


# ------------------------------------------------------------------------------------------------------------ admission


@dataclass(frozen=True)
class Admission:
    """One group of `task` to open, and the tokens charged for it."""

    task: str
    charged_tokens: float
    evaluates: bool = False


@dataclass(frozen=True)
class AdmissionDecision:
    """Groups to open, in order, and the pools and tenants that had no room for the next group."""

    groups: list[Admission]
    full_pools: set[str]
    limited_tenants: set[str] = field(default_factory=set[str])
    """Tenants whose next group would exceed their limit of sequences in flight, or a budget."""
    limited_places: set[Place] = field(default_factory=set[Place])
    """(tenant, pool) whose next group would exceed the tenant's limit for that pool."""

    @property
    def has_left_out(self) -> bool:
        """Whether the candidates may be incomplete: tasks of full pools, or of tenants at a limit, may have filled the query's limit, so
        that it cut off others."""
        return bool(self.full_pools or self.limited_tenants or self.limited_places)

    def leaves_out(self, task: TaskShare) -> bool:
        return task.pool in self.full_pools or task.tenant in self.limited_tenants or task.place in self.limited_places


def allowance(*, version: int, max_staleness: int, steps: int, groups_per_step: int, admitted: int, voided: int) -> int:
    """Number of further groups that the pace allows."""
    return max(0, min(version + max_staleness + 1, steps) * groups_per_step - (admitted - voided))


def pools_with_room(capacities: Mapping[str, Capacity], in_flight: Mapping[str, InFlight]) -> set[str]:
    """Pools that might admit another group. A pool without a live rollout replica has no capacity and admits none."""
    idle = InFlight()
    return {
        pool
        for pool, capacity in capacities.items()
        if capacity.sequences > 0 and in_flight.get(pool, idle).total.sequences < max(1, capacity.sequences)
    }


def groups_to_admit(
    tasks: Iterable[TaskShare],
    tenants: Mapping[str, TenantShare],
    capacities: Mapping[str, Capacity],
    in_flight: Mapping[str, InFlight],
    *,
    limit: int,
) -> AdmissionDecision:
    """Up to `limit` groups of `tasks` to open now, in the pools of `capacities`."""
    tasks = [replace(task) for task in tasks if task.pool in capacities]
    tenants = {tenant: replace(share) for tenant, share in tenants.items()}
    loads = {pool: in_flight[pool].copy() if pool in in_flight else InFlight() for pool in capacities}
    guaranteed = min_shares(tasks, tenants, capacities, loads)
    held = Counter[str]()
    for load in in_flight.values():
        held.update({tenant: of_tenant.sequences for tenant, of_tenant in load.tenants.items()})
    decision = AdmissionDecision([], set())
    while len(decision.groups) < limit:
        task = next_task((task for task in tasks if not decision.leaves_out(task)), tenants, guaranteed)
        if task is None:
            break
        tenant, load = tenants[task.tenant], loads[task.pool]
        group = Load(task.group_size, task.reserved_tokens)
        if not tenant.limits.may_hold(held[task.tenant], group):
            decision.limited_tenants.add(task.tenant)
            continue
        if not tenant.limits.may_hold_in_pool(load.tenants.get(task.tenant, Load()), group):
            decision.limited_places.add(task.place)
            continue
        bound, evaluates = GroupBound(round(task.reserved_tokens), task.reserved_env_ms), task.evaluates
        if tenant.purse is not None and tenant.purse.refusing(task.pool, bound, evaluates=evaluates) is not None:
            decision.limited_tenants.add(task.tenant)
            continue
        if load.total.sequences and not (load.total + group).fits(capacities[task.pool]):
            decision.full_pools.add(task.pool)
            continue
        load.add(task.tenant, tenant.weight, task.task, group)
        held[task.tenant] += task.group_size
        if tenant.purse is not None:
            tenant.purse = tenant.purse.after(task.pool, bound, evaluates=evaluates)
        task.allowance -= 1
        task.charge(task.group_tokens)
        tenant.charge(task.group_tokens)
        decision.groups.append(Admission(task.task, task.group_tokens, task.evaluates))
    return decision
