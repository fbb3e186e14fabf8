"""Durations of moves between tiers, which executors leave the device for the next one, and to which tier. Pure.

State stays on the device while the budget allows it: parking such an executor only pauses it. If the next executor does not fit,
executors that are needed last leave, each to the allowed tier from which it returns fastest. Host memory has a budget too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from common.accelerators import Function, Tier
from scheduler_svc.accelerators.decisions.state import Demand, MemoryBudget, Park, Quantiles

NEWEST = 100
"""Number of newest measurements of a move that are used."""
PAUSE_S = 0.02
"""Seconds to pause or resume an executor whose state stays on the device."""
PRIOR_S = {Function.GENERATE: 1.0, Function.TRAIN: 2.0, Function.SCORE: 2.0}
"""Assumed seconds of an operation before the first measurement. A step is one operation, including its scoring."""
MIN_S = 1e-3
"""Minimum expected seconds of an operation, which keeps ratios finite."""

Key = tuple[str, Tier, Tier]
"""(executor, tier before, tier after)."""


@dataclass(frozen=True)
class Rates:
    """Prior for moves that were never measured: bytes per second, and fixed seconds.

    The defaults are conservative for a GPU behind PCIe: 8 GiB/s to and from host memory, 1 GiB/s from disk, 10 s to start an engine,
    15 s more for a process.
    """

    host_bytes_per_s: float = 8 * 2.0**30
    disk_bytes_per_s: float = 2.0**30
    fixed_s: float = 0.1
    engine_s: float = 10.0
    process_s: float = 15.0


@dataclass(frozen=True)
class Moves:
    """Measured durations of moves by executor and tiers, and rates for the others."""

    measured: Mapping[Key, Quantiles] = field(default_factory=dict[Key, Quantiles])
    rates: Rates = Rates()

    def seconds(self, executor: str, from_tier: Tier, to_tier: Tier, size_bytes: int) -> float:
        """Expected seconds of one move. `size_bytes`: device bytes of the executor while awake."""
        found = self.measured.get((executor, from_tier, to_tier))
        return found.p50_s if found is not None else prior_s(from_tier, to_tier, size_bytes, self.rates)


def prior_s(from_tier: Tier, to_tier: Tier, size_bytes: int, rates: Rates) -> float:
    """Expected seconds of a move that was never measured. Bytes are dropped at no cost and fetched at the deeper tier's rate."""
    is_fetched = to_tier.depth < from_tier.depth
    deep = from_tier if is_fetched else to_tier
    if deep is Tier.DEVICE:
        return PAUSE_S
    if deep is Tier.HOST:
        return rates.fixed_s + size_bytes / rates.host_bytes_per_s
    if not is_fetched:
        return rates.fixed_s
    seconds = rates.fixed_s + size_bytes / rates.disk_bytes_per_s
    if deep is Tier.NONE:
        seconds += rates.engine_s
    elif deep is Tier.OFF:
        seconds += rates.engine_s + rates.process_s
    return seconds


def measured(durations_s: Mapping[Key, Iterable[float]]) -> dict[Key, Quantiles]:
    """Quantiles of each move's newest measurements. `durations_s`: oldest first; moves without a measurement are left out."""
    found: dict[Key, Quantiles] = {}
    for key, durations in durations_s.items():
        ordered = sorted(list(durations)[-NEWEST:])
        if ordered:
            found[key] = Quantiles(ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))])
    return found


def piece_s(measured_s: float | None, function: Function) -> float:
    """Expected seconds of one operation. `measured_s`: the executor's measured mean, in batches; None before the first operation."""
    return max(MIN_S, measured_s) if measured_s else PRIOR_S[function]


NEVER_S = float("inf")


@dataclass(frozen=True)
class Resident:
    """An executor with state on the device."""

    demand: Demand
    tiers: tuple[Tier, ...]
    """Tiers that it may be parked in, shortest round trip first."""


@dataclass(frozen=True)
class Residents:
    """Executors with state on the device, in eviction order, and the bytes in use."""

    on_device: tuple[Resident, ...]
    device_bytes: int
    host_bytes: int

    @classmethod
    def of(cls, executors: Sequence[Demand], moves: Moves, forecast_s: Mapping[str, float]) -> "Residents":
        """Order executors for eviction. `forecast_s`: seconds until each is expected to be needed; absent: not expected.

        Evicted first: the one needed last; then the one cheapest to bring back; ids break ties.
        """

        def rank(one: Demand) -> tuple[float, float, str]:
            return -forecast_s.get(one.executor, NEVER_S), _round_trip_s(one, Tier.HOST, moves), one.executor

        on_device = sorted((one for one in executors if one.tier is Tier.DEVICE), key=rank)
        in_host = sum(one.host_bytes for one in executors if one.tier is Tier.HOST)
        ranked = tuple(Resident(one, _ranked_tiers(one, moves)) for one in on_device)
        return cls(ranked, sum(one.device_bytes for one in on_device), in_host)


def _ranked_tiers(one: Demand, moves: Moves) -> tuple[Tier, ...]:
    """Allowed tiers, shortest round trip first. Disk, even beyond the pool's deepest tier, is a last resort: a pool's wrong setting must
    not stop other executors."""
    deepest = max(one.deepest, Tier.DISK, key=lambda tier: tier.depth) if one.deepest is not Tier.DEVICE else Tier.DEVICE
    allowed = [tier for tier in Tier if Tier.DEVICE.depth < tier.depth <= deepest.depth]
    return tuple(sorted(allowed, key=lambda tier: (tier.depth > one.deepest.depth, _round_trip_s(one, tier, moves), tier.depth)))


def where_to_park(next_: Demand, residents: Residents, budget: MemoryBudget) -> tuple[Park, ...] | None:
    """Moves that make room on the device for `next_`; None if it does not fit even alone.

    An executor may grow while it is awake, so those on the device may exceed the budget. Executors that stay on the device need no move.
    The others are parked before `next_` wakes, so its own place in host memory is not free yet.
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
