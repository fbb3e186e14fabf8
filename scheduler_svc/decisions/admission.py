"""How many groups of which task to release now: pace, fairness and capacity. Pure.

Pace (DESIGN §6.3, AReaL's bound): a task may have admitted, void groups not counted,

    min(version + max_staleness + 1, steps) × groups_per_step

groups. With batching's rule (`batching.py`) nothing trained is ever staler than the bound, without discarding.

Capacity: what the pool's rollout replicas decode at once, in sequences and KV-cache tokens, times a small factor that
covers work being graded. When the next group in fair order (`fair_share.py`, `min_share.py`) does not fit, nobody smaller overtakes
it; when nothing is in flight, one group always goes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scheduler_svc.decisions.fair_share import TaskShare, TenantShare, next_task
from scheduler_svc.decisions.min_share import Capacity, InFlight, Load, MinShares


@dataclass(frozen=True)
class Admission:
    """One group of `task` to open, and what it was charged."""

    task: str
    charged_tokens: float
    evaluates: bool = False


def allowance(*, version: int, max_staleness: int, steps: int, groups_per_step: int, admitted: int, voided: int) -> int:
    """Groups that the pace allows beyond those admitted."""
    return max(0, min(version + max_staleness + 1, steps) * groups_per_step - (admitted - voided))


def pools_with_room(capacities: dict[str, Capacity], in_flight: dict[str, InFlight]) -> set[str]:
    """Pools that might take another group. One without capacity (no live rollout replica) takes none."""
    return {
        pool
        for pool, capacity in capacities.items()
        if capacity.sequences > 0 and in_flight.setdefault(pool, InFlight()).total.sequences < max(1, capacity.sequences)
    }


def places_of(
    tasks: Iterable[TaskShare], tenants: Mapping[str, TenantShare], capacities: dict[str, Capacity], in_flight: dict[str, InFlight]
) -> dict[str, MinShares]:
    """Who is owed places of each of these pools, as seen by those who want some now."""
    by_pool: dict[str, list[TaskShare]] = {pool: [] for pool in capacities}
    for task in tasks:
        if task.pool in by_pool:
            by_pool[task.pool].append(task)
    return {pool: MinShares(capacities[pool], in_flight.setdefault(pool, InFlight()), found, tenants) for pool, found in by_pool.items()}


def groups_to_admit(
    tasks: list[TaskShare], tenants: dict[str, TenantShare], capacities: dict[str, Capacity], in_flight: dict[str, InFlight], *, most: int
) -> list[Admission]:
    """At most `most` groups to open now, in order. Charges `tasks`, `tenants` and `in_flight` as it goes.

    The capacity of a pool that is full is taken out of `capacities`.
    """
    admitted: list[Admission] = []
    places = places_of(tasks, tenants, capacities, in_flight)
    while len(admitted) < most:
        task = next_task((task for task in tasks if task.pool in capacities), tenants, places)
        if task is None:
            break
        tenant, load = tenants[task.tenant], in_flight[task.pool]
        group = Load(task.group_size, task.reserved_tokens)
        if load.total.sequences and not (load.total + group).fits(capacities[task.pool]):
            del capacities[task.pool]
            continue
        load.add(task.tenant, tenant.weight, task.task, group)
        task.allowance -= 1
        task.charge(task.group_tokens)
        tenant.charge(task.group_tokens)
        admitted.append(Admission(task.task, task.group_tokens, task.evaluates))
    return admitted
