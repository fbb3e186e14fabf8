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

    def __add__(self, other: "InFlight") -> "InFlight":
        return InFlight(self.sequences + other.sequences, self.tokens + other.tokens)

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
    evaluates: bool = False


def allowance(*, version: int, max_staleness: int, steps: int, groups_per_step: int, admitted: int, voided: int) -> int:
    """Groups that the pace allows beyond those admitted."""
    return max(0, min(version + max_staleness + 1, steps) * groups_per_step - (admitted - voided))


def pools_with_room(capacities: dict[str, Capacity], in_flight: dict[str, InFlight]) -> set[str]:
    """Pools that might take another group. One without capacity (no live rollout replica) takes none."""
    return {
        pool
        for pool, capacity in capacities.items()
        if capacity.sequences > 0 and in_flight.setdefault(pool, InFlight()).sequences < max(1, capacity.sequences)
    }


def groups_to_admit(
    tasks: list[TaskShare], tenants: dict[str, TenantShare], capacities: dict[str, Capacity], in_flight: dict[str, InFlight], *, most: int
) -> list[Admission]:
    """At most `most` groups to open now, in order. Charges `tasks`, `tenants` and `in_flight` as it goes.

    The capacity of a pool that is full is taken out of `capacities`.
    """
    admitted: list[Admission] = []
    while len(admitted) < most:
        task = next_task((task for task in tasks if task.pool in capacities), tenants)
        if task is None:
            break
        load = in_flight.setdefault(task.pool, InFlight())
        if not load.has_room(capacities[task.pool], task):
            del capacities[task.pool]
            continue
        load.add(task)
        task.allowance -= 1
        task.charge(task.group_tokens)
        tenants[task.tenant].charge(task.group_tokens)
        admitted.append(Admission(task.task, task.group_tokens, task.evaluates))
    return admitted
