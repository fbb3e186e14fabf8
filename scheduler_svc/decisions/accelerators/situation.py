"""One accelerator at one moment, for all policies: who waits, what a switch to each of them costs, and who is ahead of its share. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from common.accelerators import Tier
from scheduler_svc.decisions.accelerators.moves import Moves
from scheduler_svc.decisions.accelerators.state import Demand, Holding, Park, Reason, Rules, Switch
from scheduler_svc.decisions.accelerators.tiers import Residents, where_to_park


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
    pools: tuple[str, ...]
    """All pools of the accelerator, in the order of their names."""
    moves: Moves
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
        """Candidates whose state is on the device: switches that move nothing."""
        return tuple(one for one in self.candidates if one.demand.tier is Tier.DEVICE)

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

    def back_s(self, candidate: Candidate) -> float:
        """Expected seconds of the switch from `candidate` back to the holder."""
        assert self.holder is not None
        one, gone = candidate.demand, {park.executor: park.to_tier for park in candidate.park_to}
        tier = gone.get(self.holder.executor, Tier.DEVICE)
        woken = self.moves.seconds(self.holder.executor, tier, Tier.DEVICE, self.holder.device_bytes)
        if tier is Tier.DEVICE:
            return woken
        return woken + self.moves.seconds(one.executor, Tier.DEVICE, tier, one.device_bytes)


def situation(now_s: float, holding: Holding | None, demands: Sequence[Demand], moves: Moves, rules: Rules) -> Situation:
    """Everything that a policy looks at. The order of `demands` does not count."""
    ordered = sorted(demands, key=lambda one: one.executor)
    holder = next((one for one in ordered if holding is not None and one.executor == holding.executor), None)
    forecast_s = {one.executor: one.gap.p50_s for one in ordered if one.gap is not None}
    forecast_s |= {one.executor: 0.0 for one in ordered if one.ready_since_s is not None}
    residents = Residents.of(ordered, moves, forecast_s)
    found: list[Candidate] = []
    for one in ordered:
        if one.ready_since_s is None or one is holder:
            continue
        parks = where_to_park(one, residents, rules.budget)
        if parks is not None:
            found.append(Candidate(one, parks, _switch_s(one, parks, residents, moves)))
    pools = tuple(sorted({one.pool for one in ordered}))
    return Situation(now_s, holding, holder, tuple(found), pools, moves, rules)


def _switch_s(next_: Demand, parks: Sequence[Park], residents: Residents, moves: Moves) -> float:
    sizes = {one.demand.executor: one.demand.device_bytes for one in residents.on_device} if parks else {}
    parked = sum(moves.seconds(park.executor, park.from_tier, park.to_tier, sizes[park.executor]) for park in parks)
    return parked + moves.seconds(next_.executor, next_.tier, Tier.DEVICE, next_.device_bytes)


def within_share(working: Sequence[Demand], lead_s: float) -> set[str]:
    """Executors with a tenant that is not ahead of the least-served one by more than `lead_s`, nor the pool of the tenant's other pools.

    `working`: executors with work. Times are weighted seconds of the accelerator. Executors without claims count as within.
    """
    least, least_of_pools = float("inf"), dict[str, float]()
    for one in working:
        for claim in one.claims:
            least = min(least, claim.virtual_s)
            known = least_of_pools.get(claim.tenant)
            if known is None or claim.pool_virtual_s < known:
                least_of_pools[claim.tenant] = claim.pool_virtual_s
    bound_s = least + lead_s
    return {
        one.executor
        for one in working
        if not one.claims
        or any(claim.virtual_s <= bound_s and claim.pool_virtual_s <= least_of_pools[claim.tenant] + lead_s for claim in one.claims)
    }
