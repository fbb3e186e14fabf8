"""How many groups of which task to release now: pace, fairness and capacity. Pure.

Pace (DESIGN §6.3, AReaL's bound): a task may have admitted, void groups not counted,

    min(version + max_staleness + 1, steps) × groups_per_step

groups. With batching's rule (`batching.py`) nothing trained is ever staler than the bound, without discarding.

Capacity: what the pool's rollout replicas decode at once, in sequences and KV-cache tokens, times a small factor that
covers work being graded. When the next group in fair order does not fit, nobody smaller overtakes it; when nothing is
in flight, one group always goes.
"""

from dataclasses import dataclass

from scheduler_svc.fairness import TaskShare, TenantShare, next_task


@dataclass(frozen=True)
class Capacity:
    """Of one pool, summed over its live rollout replicas."""

    sequences: float
    kv_tokens: float


@dataclass
class InFlight:
    """Admitted and not yet scored, in one pool."""

    sequences: int = 0
    tokens: float = 0.0

    def has_room(self, capacity: Capacity, task: TaskShare) -> bool:
        if self.sequences == 0:
            return True
        return self.sequences + task.group_size <= capacity.sequences and self.tokens + task.reserved_tokens <= capacity.kv_tokens

    def add(self, task: TaskShare) -> None:
        self.sequences += task.group_size
        self.tokens += task.reserved_tokens


@dataclass(frozen=True)
class Admission:
    """One group of `task` to open, and what it was charged."""

    task: str
    charged_tokens: float


def allowance(*, version: int, max_staleness: int, steps: int, groups_per_step: int, admitted: int, voided: int) -> int:
    """Groups that the pace allows beyond those admitted."""
    return max(0, min(version + max_staleness + 1, steps) * groups_per_step - (admitted - voided))


def groups_to_admit(
    tasks: list[TaskShare], tenants: dict[str, TenantShare], capacities: dict[str, Capacity], in_flight: dict[str, InFlight]
) -> list[Admission]:
    """Groups to open now, in order. Charges `tasks`, `tenants` and `in_flight` as it goes.

    A pool without capacity (no live rollout replica) admits nothing.
    """
    admitted: list[Admission] = []
    open_pools = {pool for pool, capacity in capacities.items() if capacity.sequences > 0}
    while True:
        task = next_task((task for task in tasks if task.pool in open_pools), tenants)
        if task is None:
            return admitted
        load = in_flight.setdefault(task.pool, InFlight())
        if not load.has_room(capacities[task.pool], task):
            open_pools.discard(task.pool)
            continue
        load.add(task)
        task.allowance -= 1
        task.charge(task.group_tokens)
        tenants[task.tenant].charge(task.group_tokens)
        admitted.append(Admission(task.task, task.group_tokens))
