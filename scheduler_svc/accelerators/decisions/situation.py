"""One accelerator at one moment, for all policies: who waits, the cost of each switch, and who is ahead of its share. Pure.

Fairness counts the accelerator time of the last WINDOW_S. A newcomer has none, and would be served alone until it caught up. It is
therefore credited with the time of the least-served tenant with work, as in the fair share of tokens. The credit
decays as the window moves on, like the others' earlier time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import mul

from common.accelerators import Tier
from scheduler_svc.accelerators.decisions.state import Claim, Demand, Holding, Park, Reason, Rules, Switch
from scheduler_svc.accelerators.decisions.tiers import Moves, Residents, where_to_park

WINDOW_S = 600.0
"""Length of the fairness window in seconds."""
PRESENT = 0.5
"""Fraction of its fair part of a pool's or an accelerator's time that a tenant must have received to count as having work."""


@dataclass(frozen=True)
class Candidate:
    """An executor other than the holder that has ready work, and the switch to it."""

    demand: Demand
    park_to: tuple[Park, ...]
    switch_s: float
    """Expected seconds of the switch: all parking, then waking the executor."""

    @property
    def executor(self) -> str:
        return self.demand.executor

    def chosen(self, reason: Reason) -> Switch:
        return Switch(self.executor, self.demand.function, self.park_to, reason, self.switch_s)

    def ratio(self, now_s: float) -> float:
        """Response ratio with switch cost: (wait + work) / (work + switch)."""
        work_s = self.demand.work_s
        return (now_s - self.demand.waiting_since_s + work_s) / (work_s + self.switch_s)


@dataclass(frozen=True)
class Situation:
    """The holder, and the candidates ordered by executor id."""

    now_s: float
    holding: Holding | None
    holder: Demand | None
    """Demand of the executor with the slice; None if no slice is in progress, or the executor is no longer among the demands."""
    candidates: tuple[Candidate, ...]
    """Executors with ready work whose state fits into the budget."""
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
        """Time until which the state moved to the device by the last switch stays there; minus infinity without a holder."""
        if self.holding is None:
            return float("-inf")
        return self.holding.stay_since_s + self.rules.residency * self.holding.stay_switch_s

    @property
    def on_device(self) -> tuple[Candidate, ...]:
        """Candidates whose state is on the device and fits there beside the others': switching to them moves nothing."""
        return tuple(one for one in self.candidates if one.demand.tier is Tier.DEVICE and not one.park_to)

    @property
    def ordered(self) -> list[Candidate]:
        """Candidates that an operator ordered to wake."""
        return [one for one in self.candidates if one.demand.is_ordered]

    @property
    def overdue(self) -> list[Candidate]:
        """Candidates that have waited for `max_wait_s`, longest wait first."""
        found = [one for one in self.candidates if one.demand.waiting_since_s + self.rules.max_wait_s <= self.now_s]
        return sorted(found, key=lambda one: (one.demand.waiting_since_s, one.executor))

    @cached_property
    def fair(self) -> set[str]:
        """Executors with work that are not ahead of their share."""
        own = [self.holder] if self.holder is not None and self.is_working else []
        return within_share([*own, *(one.demand for one in self.candidates)], self.rules.lead_s)

    @property
    def next_overdue_s(self) -> float:
        """Time at which the first candidate becomes overdue; infinite without candidates."""
        return min((one.demand.waiting_since_s + self.rules.max_wait_s for one in self.candidates), default=float("inf"))


def situation(now_s: float, holding: Holding | None, demands: Sequence[Demand], moves: Moves, rules: Rules) -> Situation:
    """Inputs of a policy, derived from `demands` in any order."""
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

    `working`: executors with work; those without claims are always included. An executor's time is the mean of its tenants' weighted times,
    weighted by each tenant's service in its pool, so that a tenant that hardly uses a pool does not represent one that fills it. First,
    executors remain whose time exceeds the minimum by at most `lead_s`. Of these, executors remain whose tenants' lead over their other
    pools exceeds the minimum of such leads by at most `lead_s`. At least one executor remains.
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
    """One executor's claims, and their weights in means."""

    claims: Sequence[Claim]
    served: Sequence[float]
    """Weight of each claim in a mean: seconds booked in the pool, or the tenants' weights if nothing is booked."""

    @classmethod
    def of(cls, claims: Sequence[Claim]) -> "_Claims":
        served = [(one.pool_virtual_s - one.given_s) * one.weight for one in claims]
        return cls(claims, served if any(served) else [one.weight for one in claims])

    def mean(self, values: Sequence[float]) -> float:
        return sum(map(mul, values, self.served)) / sum(self.served)

    @property
    def present(self) -> list[Claim]:
        """Claims of tenants that were served at least PRESENT of their fair part; the others have too little work here to be behind."""
        least = PRESENT * sum(self.served) / sum(one.weight for one in self.claims)
        return [one for one, served in zip(self.claims, self.served, strict=True) if served >= least * one.weight]


@dataclass(frozen=True)
class Start:
    """Arrival time of a tenant or pool, and the weighted seconds credited to it."""

    at_s: float
    given_s: float

    def left_s(self, now_s: float) -> float:
        """Part of the credit that still counts; it decays linearly over WINDOW_S."""
        return self.given_s * max(0.0, 1.0 - (now_s - self.at_s) / WINDOW_S)


@dataclass(frozen=True)
class Present:
    """A tenant or pool that was there before the newcomer."""

    weight: float
    virtual_s: float
    """Seconds within the window divided by its weight, including its credit."""


def starting_s(own_s: float, others: Sequence[Present]) -> float:
    """Weighted seconds to credit to a newcomer. `own_s`: its seconds within the window.

    With the credit, the newcomer has as many seconds as the least-served of the others. Others below PRESENT of their fair part are
    ignored: they lack work, for example because their tools are slow.
    """
    if not others:
        return 0.0
    fair_s = sum(one.weight * one.virtual_s for one in others) / sum(one.weight for one in others)
    return max(0.0, min(one.virtual_s for one in others if one.virtual_s >= PRESENT * fair_s) - own_s)
