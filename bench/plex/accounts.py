"""What one simulated accelerator counted, and whom its time is booked to."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from common.accelerators.trace import Task
from scheduler_svc.accelerators.booking import slice_shares
from scheduler_svc.accelerators.decisions.state import Claim
from scheduler_svc.training.decisions.admission import starting_virtual_time

Place = tuple[str, str]
"""Tenant and pool."""


@dataclass
class Counts:
    """What happened on one accelerator. Times in seconds."""

    held_s: float = 0.0
    """All slices, switches included."""
    switch_s: float = 0.0
    busy_s: float = 0.0
    switches: int = 0
    moving_switches: int = 0
    """Switches that moved state."""
    frozen: int = 0
    """Operations that were frozen, each time counted."""
    reasons: Counter[str] = field(default_factory=Counter[str])
    operation_waits_s: list[float] = field(default_factory=list[float])
    """From ready to begun, of each operation."""
    executor_waits_s: list[float] = field(default_factory=list[float])
    """From the later of ready and parked to awake, of each slice."""
    longest_switch_s: dict[str, float] = field(default_factory=dict[str, float])
    """By executor."""
    longest_operation_s: dict[str, float] = field(default_factory=dict[str, float])
    """By executor, from an operation's begin to its end or its freezing."""

    @property
    def bound_s(self) -> float:
        """Seconds beyond `max_wait_s` that an executor may wait: one operation and one switch of each."""
        return sum(self.longest_operation_s.values()) + sum(self.longest_switch_s.values())


@dataclass
class Accounts:
    """Booked time by task, tenant and pool. Virtual times are seconds divided by the tenant's weight, as in the fair share of tokens."""

    booked_ms: Counter[str] = field(default_factory=Counter[str])
    """By task."""
    slices_ms: int = 0
    """Sum of all slices."""
    _served_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _owners: dict[str, Task] = field(default_factory=dict[str, Task])
    _virtual_s: dict[str, float] = field(default_factory=dict[str, float])
    _of_pool_s: dict[Place, float] = field(default_factory=dict[Place, float])

    def activate(self, task: Task, active: Iterable[Task]) -> None:
        """The task has work. Its tenant, or its tenant's pool, that had none begins at the smallest virtual time of those that have."""
        self._owners[task.task] = task
        active = list(active)
        tenants = {one.tenant for one in active}
        if task.tenant not in tenants:
            others = [self._virtual_s[one] for one in sorted(tenants)]
            past = max(self._virtual_s.values(), default=0.0)
            self._virtual_s[task.tenant] = starting_virtual_time(self._virtual_s.get(task.tenant, 0.0), others, past)
        place = (task.tenant, task.pool)
        places = {(one.tenant, one.pool) for one in active if one.tenant == task.tenant}
        if place not in places:
            others = [self._of_pool_s[one] for one in sorted(places)]
            past = max((seconds for (tenant, _), seconds in self._of_pool_s.items() if tenant == task.tenant), default=0.0)
            self._of_pool_s[place] = starting_virtual_time(self._of_pool_s.get(place, 0.0), others, past)

    def serve(self, task: str, seconds: float) -> None:
        """Part of the slice in progress in which the task's operation ran."""
        self._served_s[task] += seconds

    def provisional(self, slice_s: float) -> dict[Place, float]:
        """Seconds of the slice in progress by tenant and pool, as if it ended now."""
        whole = sum(self._served_s.values())
        found: dict[Place, float] = {}
        for task, seconds in self._served_s.items():
            if seconds > 0:
                owner = self._owners[task]
                place = (owner.tenant, owner.pool)
                found[place] = found.get(place, 0.0) + slice_s * seconds / whole
        return found

    def claims(self, tasks: Iterable[Task], provisional: dict[Place, float]) -> tuple[Claim, ...]:
        """Claims of an executor with work of these tasks."""
        weights = {(one.tenant, one.pool): one.weight for one in tasks}
        claims: list[Claim] = []
        for (tenant, pool), weight in sorted(weights.items()):
            of_tenant_s = sum(seconds for (one, _), seconds in provisional.items() if one == tenant)
            of_pool_s = provisional.get((tenant, pool), 0.0)
            virtual_s, pool_virtual_s = self._virtual_s[tenant] + of_tenant_s / weight, self._of_pool_s[tenant, pool] + of_pool_s / weight
            claims.append(Claim(tenant, weight, virtual_s, pool_virtual_s))
        return tuple(claims)

    def book(self, slice_ms: int, ordered_for: Iterable[str]) -> None:
        """End the slice: its whole milliseconds go to the tasks that were served, or that it was ordered for."""
        served = {task: round(1000 * seconds) for task, seconds in self._served_s.items()}
        for task, milliseconds in slice_shares(slice_ms, served, list(ordered_for)).items():
            owner = self._owners[task]
            self.booked_ms[task] += milliseconds
            self._virtual_s[owner.tenant] += milliseconds / 1000 / owner.weight
            self._of_pool_s[owner.tenant, owner.pool] += milliseconds / 1000 / owner.weight
        self.slices_ms += slice_ms
        self._served_s.clear()
