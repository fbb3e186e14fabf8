"""Who goes next: weighted fair share over tenants, then over each tenant's tasks, by tokens consumed. Pure.

Each tenant and each task has a virtual time: tokens charged, divided by the tenant's weight. The smallest goes next
(Virtual Token Counter, arXiv 2401.00588). Work is charged an estimate when admitted and corrected when it ends, so
what counts is what was consumed. A newcomer starts at the smallest virtual time of those already active: it neither
waits for the past of others nor lives on credit of its own. The same holds for whoever comes back after a pause.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass


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


def next_task(tasks: Iterable[TaskShare], tenants: dict[str, TenantShare]) -> TaskShare | None:
    """The task that may admit the next group; None when no allowance is left.

    Order: least-served tenant, then the tenant's highest priority, then its least-served task, of one task its
    evaluations; ids break ties.
    """
    waiting = [task for task in tasks if task.allowance > 0]
    if not waiting:
        return None
    return min(
        waiting,
        key=lambda task: (tenants[task.tenant].virtual_time, task.tenant, -task.priority, task.virtual_time, task.task, not task.evaluates),
    )


def starting_virtual_time(own: float, active: Collection[float], past: float = 0.0) -> float:
    """Where a tenant or task that becomes active begins; where nobody is, at `past`, the largest that anyone reached."""
    return max(own, min(active) if active else past)
