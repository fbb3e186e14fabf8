"""One accelerator at one moment, for all policies: who waits, what a switch to each of them costs, and who is ahead of its share. Pure.

What counts for fairness is the time of the last WINDOW_S. Who comes has none of it, and would be served alone until it had as much as the
others. So it is given what the least-served of those has that have work, as in the fair share of tokens. What it
is given passes as the window moves on: the others lose what they were served before it came.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import mul

from common.accelerators import Tier
from scheduler_svc.accelerators.decisions.state import Claim, Demand, Holding, Park, Reason, Rules, Switch
from scheduler_svc.accelerators.decisions.tiers import Moves, Residents, where_to_park

WINDOW_S = 600.0
"""Time of the accelerator that counts for fairness."""
PRESENT = 0.5
"""Share of its fair part from which a tenant counts as having work: of a pool's time there, or of the accelerator's."""


@dataclass(frozen=True)
class Candidate:
    """An executor with ready work that does not hold the accelerator, and the switch to it."""

    demand: Demand
    park_to: tuple[Park, ...]
    switch_s: float
    """Expected seconds of the switch: all parking, then its waking."""

    @property
    def executor(self) -> str:
        return self.demand.executor

    def chosen(self, reason: Reason) -> Switch:
        return Switch(self.executor, self.demand.function, self.park_to, reason, self.switch_s)

    def ratio(self, now_s: float) -> float:
        """(wait + work) / (work + switch)."""
        work_s = self.demand.work_s
        return (now_s - self.demand.waiting_since_s + work_s) / (work_s + self.switch_s)


@dataclass(frozen=True)
class Situation:
    """The holder, and the candidates in the order of their ids."""

    now_s: float
    holding: Holding | None
    holder: Demand | None
    """None without a holder, and where its executor is not among the demands any more."""
    candidates: tuple[Candidate, ...]
    """Executors whose state fits into the budget at all."""
    rules: Rules

    @property
    def is_working(self) -> bool:
        """Whether the holder has an operation in progress, or ready work."""
        if self.holder is None or self.holding is None:
            return False
        return self.holding.running is not None or self.holder.ready_since_s is not None

    @property
    def is_interruptible(self) -> bool:
        """Whether another executor may follow now: no step or scoring pass runs, and a holder with work has started some of it."""
        if self.holder is None or self.holding is None:
            return True
        if self.holding.running is not None:
            return self.holding.running.is_interruptible
        return self.holding.has_started or self.holder.ready_since_s is None

    @property
    def stays_until_s(self) -> float:
        """End of the residency of what was moved to the device; minus infinity without a holder."""
        if self.holding is None:
            return float("-inf")
        return self.holding.stay_since_s + self.rules.residency * self.holding.stay_switch_s

    @property
    def on_device(self) -> tuple[Candidate, ...]:
        """Candidates whose state is on the device, and fits there with the others': switches that move nothing."""
        return tuple(one for one in self.candidates if one.demand.tier is Tier.DEVICE and not one.park_to)

    @property
    def ordered(self) -> list[Candidate]:
        """Candidates that an operator ordered."""
        return [one for one in self.candidates if one.demand.is_ordered]

    @property
    def overdue(self) -> list[Candidate]:
        """Candidates that have waited for `max_wait_s`, the longest wait first."""
        found = [one for one in self.candidates if one.demand.waiting_since_s + self.rules.max_wait_s <= self.now_s]
        return sorted(found, key=lambda one: (one.demand.waiting_since_s, one.executor))

    @cached_property
    def fair(self) -> set[str]:
        """Executors with work that are not ahead of their share."""
        own = [self.holder] if self.holder is not None and self.is_working else []
        return within_share([*own, *(one.demand for one in self.candidates)], self.rules.lead_s)

    @property
    def next_overdue_s(self) -> float:
        """When the first candidate becomes overdue; infinite without candidates."""
        return min((one.demand.waiting_since_s + self.rules.max_wait_s for one in self.candidates), default=float("inf"))


def situation(now_s: float, holding: Holding | None, demands: Sequence[Demand], moves: Moves, rules: Rules) -> Situation:
    """Everything that a policy looks at. The order of `demands` does not count."""
    ordered = sorted(demands, key=lambda one: one.executor)
    holder = next((one for one in ordered if holding is not None and one.executor == holding.executor), None)
    residents = Residents.of(ordered, moves, {one.executor: 0.0 for one in ordered if one.ready_since_s is not None})
    found: list[Candidate] = []
    for one in ordered:
        if one.ready_since_s is None or one is holder:
            continue
        parks = where_to_park(one, residents, rules.budget)
        if parks is not None:
            found.append(Candidate(one, parks, _switch_s(one, parks, residents, moves)))
    return Situation(now_s, holding, holder, tuple(found), rules)


def _switch_s(next_: Demand, parks: Sequence[Park], residents: Residents, moves: Moves) -> float:
    sizes = {one.demand.executor: one.demand.device_bytes for one in residents.on_device} if parks else {}
    parked = sum(moves.seconds(park.executor, park.from_tier, park.to_tier, sizes[park.executor]) for park in parks)
    return parked + moves.seconds(next_.executor, next_.tier, Tier.DEVICE, next_.device_bytes)


def within_share(working: Sequence[Demand], lead_s: float) -> set[str]:
    """Executors that are not ahead of their share of the accelerator: by tenant, then by a tenant's pools.

    `working`: executors with work; those without claims count as within. An executor's time is the mean of its tenants' weighted times,
    by what each was served in its pool: a tenant that hardly uses a pool does not stand for one that fills it. Within are those that are
    ahead of the least by no more than `lead_s`, and of these, those whose tenants are no more than that further ahead of their other pools.
    Some executor is always within.
    """
    claims = {one.executor: _Claims.of(one.claims) for one in working if one.claims}
    near = _up_to({name: each.mean([one.virtual_s for one in each.claims]) for name, each in claims.items()}, lead_s)
    least_of_pools: dict[str, float] = {}
    for name in near:
        for one in claims[name].present:
            least_of_pools[one.tenant] = min(one.pool_virtual_s, least_of_pools.get(one.tenant, one.pool_virtual_s))
    ahead = {
        name: claims[name].mean(
            [max(0.0, one.pool_virtual_s - least_of_pools.get(one.tenant, one.pool_virtual_s)) for one in claims[name].claims]
        )
        for name in near
    }
    return _up_to(ahead, lead_s) | {one.executor for one in working if not one.claims}


def _up_to(values_s: Mapping[str, float], lead_s: float) -> set[str]:
    bound_s = min(values_s.values(), default=0.0) + lead_s
    return {name for name, seconds in values_s.items() if seconds <= bound_s}


@dataclass(frozen=True)
class _Claims:
    """One executor's claims."""

    claims: Sequence[Claim]
    served: Sequence[float]
    """Of each, its weight in a mean: seconds booked in the pool. Where nobody has any, the tenants' weights."""

    @classmethod
    def of(cls, claims: Sequence[Claim]) -> "_Claims":
        served = [(one.pool_virtual_s - one.given_s) * one.weight for one in claims]
        return cls(claims, served if any(served) else [one.weight for one in claims])

    def mean(self, values: Sequence[float]) -> float:
        return sum(map(mul, values, self.served)) / sum(self.served)

    @property
    def present(self) -> list[Claim]:
        """Claims of tenants that were served PRESENT of their fair part or more; others have too little work here to be behind."""
        least = PRESENT * sum(self.served) / sum(one.weight for one in self.claims)
        return [one for one, served in zip(self.claims, self.served, strict=True) if served >= least * one.weight]


@dataclass(frozen=True)
class Start:
    """When a tenant or pool came, and the weighted seconds that it was given."""

    at_s: float
    given_s: float

    def left_s(self, now_s: float) -> float:
        """What still counts of them."""
        return self.given_s * max(0.0, 1.0 - (now_s - self.at_s) / WINDOW_S)


@dataclass(frozen=True)
class Present:
    """One that was there before."""

    weight: float
    virtual_s: float
    """Seconds of the window divided by its weight, with what it was given."""


def starting_s(own_s: float, others: Sequence[Present]) -> float:
    """Weighted seconds that one which comes is given; `own_s`: those that it has of the window.

    It has as many then as the least-served of the others. Those are left out that had less than PRESENT of their fair part: their tools
    are slow.
    """
    if not others:
        return 0.0
    fair_s = sum(one.weight * one.virtual_s for one in others) / sum(one.weight for one in others)
    return max(0.0, min(one.virtual_s for one in others if one.virtual_s >= PRESENT * fair_s) - own_s)
