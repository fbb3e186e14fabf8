"""Which executors leave the device for the next one, and how deep they are parked. Pure.

State stays on the device while the budget allows it: parking an executor that way only pauses it. Where the next executor does not fit,
those leave that are needed last, and each goes to the allowed tier from which it is back soonest. Host memory has a budget too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.accelerators import Tier
from scheduler_svc.accelerators.decisions.moves import Moves
from scheduler_svc.accelerators.decisions.state import Demand, MemoryBudget, Park

NEVER_S = float("inf")


@dataclass(frozen=True)
class Resident:
    """An executor with state on the device."""

    demand: Demand
    tiers: tuple[Tier, ...]
    """Tiers that it may be parked in, the one with the shortest way there and back first."""


@dataclass(frozen=True)
class Residents:
    """Executors with state on the device, in the order in which they are evicted, and the bytes in use."""

    on_device: tuple[Resident, ...]
    device_bytes: int
    host_bytes: int

    @classmethod
    def of(cls, executors: Sequence[Demand], moves: Moves, forecast_s: Mapping[str, float]) -> "Residents":
        """`forecast_s`: seconds until each executor is expected to be needed; absent: not expected.

        Evicted first: needed last; then cheapest to bring back; ids break ties.
        """

        def rank(one: Demand) -> tuple[float, float, str]:
            return -forecast_s.get(one.executor, NEVER_S), _round_trip_s(one, Tier.HOST, moves), one.executor

        on_device = sorted((one for one in executors if one.tier is Tier.DEVICE), key=rank)
        in_host = sum(one.host_bytes for one in executors if one.tier is Tier.HOST)
        ranked = tuple(Resident(one, _ranked_tiers(one, moves)) for one in on_device)
        return cls(ranked, sum(one.device_bytes for one in on_device), in_host)


def _ranked_tiers(one: Demand, moves: Moves) -> tuple[Tier, ...]:
    """Without room in host memory even a pool that allows nothing deeper goes to disk: a wrong setting must not stop the others."""
    deepest = max(one.deepest, Tier.DISK, key=lambda tier: tier.depth) if one.deepest is not Tier.DEVICE else Tier.DEVICE
    allowed = [tier for tier in Tier if Tier.DEVICE.depth < tier.depth <= deepest.depth]
    return tuple(sorted(allowed, key=lambda tier: (tier.depth > one.deepest.depth, _round_trip_s(one, tier, moves), tier.depth)))


def where_to_park(next_: Demand, residents: Residents, budget: MemoryBudget) -> tuple[Park, ...] | None:
    """Moves that make room on the device for `next_`; None when it does not fit even alone.

    An executor may grow while it is awake, so that those on the device exceed the budget. Executors that stay on the device need no move.
    Others are parked before `next_` wakes, so its own place in host memory is not free yet.
    """
    free_in_host = budget.host_bytes - residents.host_bytes
    missing = residents.device_bytes - budget.device_bytes + (0 if next_.tier is Tier.DEVICE else next_.device_bytes)
    parks: list[Park] = []
    for resident in residents.on_device:
        if missing <= 0:
            break
        one = resident.demand
        to_tier = next((tier for tier in resident.tiers if tier is not Tier.HOST or one.host_bytes <= free_in_host), None)
        if one.executor == next_.executor or to_tier is None:
            continue
        if to_tier is Tier.HOST:
            free_in_host -= one.host_bytes
        missing -= one.device_bytes
        parks.append(Park(one.executor, Tier.DEVICE, to_tier))
    return tuple(parks) if missing <= 0 else None


def _round_trip_s(one: Demand, tier: Tier, moves: Moves) -> float:
    there = moves.seconds(one.executor, Tier.DEVICE, tier, one.device_bytes)
    return there + moves.seconds(one.executor, tier, Tier.DEVICE, one.device_bytes)
