"""Admission: how many groups of which task to open now, by pace, fairness and capacity. Pure.

Pace (DESIGN §6.3, AReaL's bound): a task may have admitted, void groups not counted,

    min(version + max_staleness + 1, steps) × groups_per_step

groups. With batching's rule (`decisions/batching.py`) no trained group is ever staler than the bound, and none is discarded for staleness.

Capacity: the sequences and KV-cache tokens that the pool's rollout replicas decode concurrently, times a factor for work that is being
graded (`oversubscription.py`). When the next group in fair order (`fair_share.py`) does not fit, no smaller one overtakes it; with
nothing in flight, one group is always admitted.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from scheduler_svc.tenancy.decisions.budgets import GroupBound
from scheduler_svc.tenancy.decisions.shares import Capacity, InFlight, Load, Place, TaskShare, TenantShare
from scheduler_svc.training.decisions.sharing.fair_share import next_task
from scheduler_svc.training.decisions.sharing.min_share import min_shares


@dataclass(frozen=True)
class Admission:
    """One group of `task` to open, and the tokens that it is charged."""

    task: str
    charged_tokens: float
    evaluates: bool = False


@dataclass(frozen=True)
class AdmissionDecision:
    """Groups to open, in order, and the pools and tenants that turned out to have no room for the next one."""

    groups: list[Admission]
    full_pools: set[str]
    limited_tenants: set[str] = field(default_factory=set[str])
    """Tenants whose next group would exceed their limit of sequences in flight, or a budget."""
    limited_places: set[Place] = field(default_factory=set[Place])
    """The same for limits in single pools."""

    @property
    def has_left_out(self) -> bool:
        """Whether tasks of a full pool, or of a tenant at its limit, may have kept others out of the candidates."""
        return bool(self.full_pools or self.limited_tenants or self.limited_places)

    def leaves_out(self, task: TaskShare) -> bool:
        return task.pool in self.full_pools or task.tenant in self.limited_tenants or task.place in self.limited_places


def allowance(*, version: int, max_staleness: int, steps: int, groups_per_step: int, admitted: int, voided: int) -> int:
    """Groups that the pace allows beyond those admitted."""
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
