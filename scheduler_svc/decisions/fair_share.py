"""Who goes next: weighted fair share over tenants, then over each tenant's tasks, by tokens consumed; before that, who is short
of the places owed to it (`min_share.py`). Pure.

Each tenant and each task has a virtual time: tokens charged, divided by the tenant's weight. The smallest goes next
(Virtual Token Counter, arXiv 2401.00588). Work is charged an estimate when admitted and corrected when it ends, so
what counts is what was consumed. A newcomer starts at the smallest virtual time of those already active: it neither
waits for the past of others nor lives on credit of its own. The same holds for whoever comes back after a pause.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass
class TenantShare:
    """A tenant's claim. `virtual_time` grows as work is admitted."""

    tenant: str
    weight: float
    virtual_time: float

    def charge(self, tokens: float) -> None:
        self.virtual_time += tokens / self.weight


@dataclass
class TaskShare:
    """A task's claim within its tenant, and how many more groups its pace allows."""

    task: str
    tenant: str
    pool: str
    priority: int
    virtual_time: float
    allowance: int
    group_size: int
    group_tokens: float
    """Expected, for charging."""
    reserved_tokens: float
    """Worst case, for the KV cache."""
    evaluates: bool = False
    """These are groups of the task's evaluations: a claim of their own beside that of its training."""

    def charge(self, tokens: float) -> None:
        self.virtual_time += tokens

    def evaluate(self, group_size: int) -> None:
        """Make it a claim for groups of an evaluation, of another size."""
        share = group_size / self.group_size
        self.group_size, self.group_tokens, self.reserved_tokens = group_size, self.group_tokens * share, self.reserved_tokens * share
        self.evaluates = True


class Owed(Protocol):
    """Who is owed places of a pool, and holds fewer."""

    def tenant_is_short(self, tenant: str) -> bool: ...

    def task_is_short(self, tenant: str, task: str) -> bool: ...


def next_task(tasks: Iterable[TaskShare], tenants: Mapping[str, TenantShare], places: Mapping[str, Owed]) -> TaskShare | None:
    """The task that may admit the next group; None when no allowance is left. `places`: by pool.

    Order: tenants that are short of places, the least-served tenant, then the tenant's highest priority, its tasks that are short
    of places, its least-served task, of one task its evaluations; ids break ties.
    """

    waiting: dict[tuple[str, str], list[TaskShare]] = {}
    for task in tasks:
        if task.allowance > 0:
            waiting.setdefault((task.tenant, task.pool), []).append(task)

    def of_tenants(key: tuple[str, str]) -> tuple[object, ...]:
        tenant, pool = key
        return not places[pool].tenant_is_short(tenant), tenants[tenant].virtual_time, tenant

    def of_its_tasks(task: TaskShare) -> tuple[object, ...]:
        is_short = places[task.pool].task_is_short(task.tenant, task.task)
        return -task.priority, not is_short, task.virtual_time, task.task, not task.evaluates

    first = min(map(of_tenants, waiting), default=None)
    candidates = [task for key, found in waiting.items() if of_tenants(key) == first for task in found]
    return min(candidates, key=of_its_tasks, default=None)


def starting_virtual_time(own: float, active: Collection[float], past: float = 0.0) -> float:
    """Where a tenant or task that becomes active begins; where nobody is, at `past`, the largest that anyone reached."""
    return max(own, min(active) if active else past)
