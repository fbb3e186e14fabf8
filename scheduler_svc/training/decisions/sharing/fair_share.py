"""Fair share: which task may open the next group. Pure.

Tenants below their minimum share go first (`min_share.py`). Then weighted fair queuing decides, over tenants and over each tenant's
tasks, by tokens consumed: each has a virtual time, the tokens charged divided by the tenant's weight, and the smallest goes next
(Virtual Token Counter, arXiv 2401.00588). A group is charged an estimate when admitted, corrected when it ends, so consumption counts.
A new or resumed tenant or task starts at the smallest virtual time of those active: it has neither a debt nor a credit.
"""

from collections.abc import Collection, Iterable, Mapping

from scheduler_svc.tenancy.decisions.shares import TaskShare, TenantShare
from scheduler_svc.training.decisions.sharing.min_share import MinShares


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
    """Virtual time of a tenant or task that becomes active; `past`, the largest ever reached, counts where no other is active."""
    return max(own, min(active) if active else past)
