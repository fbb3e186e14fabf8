"""Fair queue: chooses the item that a shared resource serves next, tenant first, then task. Pure.

Every competitor has a virtual time, the service that it received divided by its weight. The resource's virtual time is their weighted
mean. A competitor is eligible while it is not ahead of that mean, and the eligible one that would finish its next item first is
served: earliest eligible virtual deadline first (Stoica and Abdel-Wahab, 1995; the rule of Linux since 6.6). While the same
competitors wait, each has received its weighted share within one item, whatever the weights.

A competitor that starts to wait gets the resource's virtual time: it has saved no credit, but keeps a debt from an earlier wait.
Items in service are charged before they are served, which puts the resource's virtual time ahead. A competitor that submits each item
only after the previous one, as a task does with its steps, must not lose by this. So it starts earlier by this lead, but by at most one
item, and not before its own virtual time.
Tenants compete by their weights, and a tenant's tasks with equal weights for their tenant's share.

An item is charged an estimate when it is taken, the mean of the task's earlier items, and corrected when it is done, so that several
items in service count from their start. Service is in seconds, or in the unit that the caller passes to `done`.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
SMOOTHING = 0.25
"""Weight of the latest item in the moving average of a competitor's service per item."""
REMEMBERED = 2
"""Lead of the resource's virtual time over that of an idle competitor, in items of the competitor, at which it is forgotten."""
ROUNDING = 1e-9
"""Relative difference below which two virtual times count as equal."""


@dataclass(frozen=True)
class Claimant:
    """Owner of an item. `weight`: the tenant's; the latest one counts."""

    tenant: str
    task: str
    weight: float = 1.0


@dataclass
class _Competitor:
    weight: float
    time: float
    """Virtual time: service received / weight."""
    item_service: float | None = None
    """Moving average of the service per item; None before the first."""
    is_waiting: bool = False
    served: int = 0
    """Sequence number of the choice that last served it; 0 before the first."""
    charged: float = 0.0
    """Sum of the charges of its items in service."""

    @property
    def item_time(self) -> float:
        """Virtual time of one of its items; 0 before the first item."""
        return (self.item_service or 0.0) / self.weight

    def observe(self, service: float) -> None:
        self.item_service = service if self.item_service is None else self.item_service + SMOOTHING * (service - self.item_service)


class Shares:
    """Weighted competitors for one resource."""

    def __init__(self) -> None:
        self._all: dict[str, _Competitor] = {}
        self._debtors: set[str] = set()
        """Competitors kept only because of their debt."""
        self._now = 0.0
        self._choices = 0

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, name: str, weight: float) -> None:
        """Make `name` wait from now on, with this weight."""
        found = self._all.setdefault(name, _Competitor(weight, self._now))
        found.weight = weight
        self._debtors.discard(name)
        if not found.is_waiting:
            found.time, found.is_waiting = max(found.time, self.now() - min(self._unserved(), found.item_time)), True

    def leave(self, name: str, *, is_served: bool) -> None:
        """End the waiting of `name`. `is_served`: whether items of it are in service; if not, it is forgotten once it has no debt."""
        self.now()
        self._all[name].is_waiting = False
        if is_served:
            return
        self._debtors.add(name)
        self._forget()

    def _forget(self) -> None:
        """Forget competitors that neither wait nor have a debt."""
        for idle in [idle for idle in self._debtors if self._all[idle].time + REMEMBERED * self._all[idle].item_time <= self._now]:
            self._debtors.discard(idle)
            del self._all[idle]

    def now(self) -> float:
        """The resource's virtual time; it does not advance while no competitor waits."""
        weights = times = 0.0
        for one in self._all.values():
            if one.is_waiting:
                weights += one.weight
                times += one.weight * one.time
        self._now = times / weights if weights else self._now
        return self._now

    def _unserved(self) -> float:
        """Lead of the resource's virtual time that is due to items in service, which are charged but not served yet."""
        waiting = [one for one in self._all.values() if one.is_waiting]
        weights = sum(one.weight for one in waiting)
        return sum(one.charged for one in waiting) / weights if weights else 0.0

    def first(self, names: Collection[str], unknown: float) -> str:
        """Name of the waiting competitor to serve next. `unknown`: expected service of an item of a competitor without history."""
        latest = self.now() + ROUNDING * max(1.0, abs(self._now))
        eligible = [name for name in names if self._all[name].time <= latest] or names

        def rank(name: str) -> tuple[float, int]:
            one = self._all[name]
            deadline = one.time + self.expected(name, unknown) / one.weight
            return round(deadline, 9), one.served

        return min(eligible, key=rank)

    def expected(self, name: str, unknown: float) -> float:
        """Expected service of the competitor's next item."""
        service = self._all[name].item_service
        return unknown if service is None else service

    def charge(self, name: str, service: float) -> None:
        """Charge a taken item to a competitor."""
        self._choices += 1
        found = self._all[name]
        found.time += service / found.weight
        found.charged += service
        found.served = self._choices
        self._forget()

    def correct(self, name: str, charged: float, service: float) -> None:
        """Replace an item's charge by its actual service. `service`: 0 if the item was not served; the average then stays unchanged."""
        found = self._all[name]
        found.time += (service - charged) / found.weight
        found.charged -= charged
        if service:
            found.observe(service)


@dataclass
class _Task(Generic[T]):
    items: deque[T] = field(default_factory=deque[T])
    charged: deque[float] = field(default_factory=deque[float])
    """Charge of each item in service."""


@dataclass
class _Tenant(Generic[T]):
    tasks: dict[str, _Task[T]] = field(default_factory=dict[str, _Task[T]])
    shares: Shares = field(default_factory=Shares)
    waiting: int = 0
    running: int = 0

    def may_take(self, max_per_task: int, fits: Callable[[T], bool]) -> Iterator[str]:
        return (name for name, task in self.tasks.items() if len(task.charged) < max_per_task and any(map(fits, task.items)))


def _any(_: object) -> bool:
    return True


class FairQueue(Generic[T]):
    """Waiting items by tenant and task, and items in service, of which a task has at most `max_per_task`."""

    def __init__(self, max_per_task: int) -> None:
        self._max_per_task = max_per_task
        self._tenants: dict[str, _Tenant[T]] = {}
        self._shares = Shares()
        self._item_service = 0.0
        """Moving average over all items, for tenants without a finished item; 0 before the first."""
        self.waiting = 0
        self.running = 0

    def running_of(self, tenant: str) -> int:
        """Number of a tenant's items in service."""
        found = self._tenants.get(tenant)
        return found.running if found is not None else 0

    def put(self, claimant: Claimant, item: T) -> None:
        tenant = self._tenants.setdefault(claimant.tenant, _Tenant())
        tenant.tasks.setdefault(claimant.task, _Task()).items.append(item)
        tenant.shares.enter(claimant.task, 1.0)
        self._shares.enter(claimant.tenant, claimant.weight)
        self._count(tenant, waiting=1)

    def discard(self, claimant: Claimant, item: T) -> None:
        """Remove an item if it is still waiting."""
        tenant = self._tenants.get(claimant.tenant)
        task = tenant.tasks.get(claimant.task) if tenant else None
        if tenant is not None and task is not None and item in task.items:
            task.items.remove(item)
            self._count(tenant, waiting=-1)
            self._settle(claimant, tenant, task)

    def first(self, fits: Callable[[T], bool] = _any) -> T | None:
        """The item to be served next; None if none may be served now. `fits`: as for `take`."""
        found = self._first(fits)
        return None if found is None else next(item for item in self._tenants[found.tenant].tasks[found.task].items if fits(item))

    def take(self, fits: Callable[[T], bool] = _any) -> tuple[Claimant, T] | None:
        """Take the next item into service until `done`; None if none may be served now. Items for which `fits` is false are skipped, and
        keep their place.
        """
        claimant = self._first(fits)
        if claimant is None:
            return None
        name, task_name = claimant.tenant, claimant.task
        tenant, usual = self._tenants[name], self._shares.expected(name, self._item_service)
        task, charge = tenant.tasks[task_name], tenant.shares.expected(task_name, usual)
        place = next(place for place, item in enumerate(task.items) if fits(item))
        item = task.items[place]
        del task.items[place]
        task.charged.append(charge)
        self._shares.charge(name, charge)
        tenant.shares.charge(task_name, charge)
        self._count(tenant, waiting=-1, running=1)
        self._settle(claimant, tenant, task)
        return claimant, item

    def _first(self, fits: Callable[[T], bool]) -> Claimant | None:
        """Tenant and task to be served next, among those with an item that fits."""
        allowed = [name for name, tenant in self._tenants.items() if any(tenant.may_take(self._max_per_task, fits))]
        if not allowed:
            return None
        name = self._shares.first(allowed, self._item_service)
        tenant, usual = self._tenants[name], self._shares.expected(name, self._item_service)
        return Claimant(name, tenant.shares.first(list(tenant.may_take(self._max_per_task, fits)), usual))

    def done(self, claimant: Claimant, service: float) -> None:
        """End the service of one of the claimant's items. `service`: its actual amount; 0 if it was taken and not served."""
        tenant = self._tenants[claimant.tenant]
        task = tenant.tasks[claimant.task]
        charged = task.charged.popleft()
        self._shares.correct(claimant.tenant, charged, service)
        tenant.shares.correct(claimant.task, charged, service)
        if service:
            self._item_service += (SMOOTHING if self._item_service else 1.0) * (service - self._item_service)
        self._count(tenant, running=-1)
        self._settle(claimant, tenant, task)

    def _count(self, tenant: _Tenant[T], *, waiting: int = 0, running: int = 0) -> None:
        self.waiting, self.running = self.waiting + waiting, self.running + running
        tenant.waiting, tenant.running = tenant.waiting + waiting, tenant.running + running

    def _settle(self, claimant: Claimant, tenant: _Tenant[T], task: _Task[T]) -> None:
        """Update whether the task and the tenant still wait, or remove them."""
        if not task.items:
            tenant.shares.leave(claimant.task, is_served=bool(task.charged))
            if not task.charged:
                del tenant.tasks[claimant.task]
        if not tenant.waiting:
            self._shares.leave(claimant.tenant, is_served=bool(tenant.running))
            if not tenant.tasks:
                del self._tenants[claimant.tenant]
        if not self._tenants:
            self._shares = Shares()  # without items all debts are dropped
