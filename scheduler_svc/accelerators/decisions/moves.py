"""Seconds of moves between tiers, and of operations: as measured, or assumed until one was measured. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from common.accelerators import Function, Tier
from scheduler_svc.accelerators.decisions.state import Quantiles

NEWEST = 100
"""Number of newest measurements of a move that count."""
PAUSE_S = 0.02
"""Seconds to pause or resume an executor whose state stays on the device."""
PRIOR_S = {Function.GENERATE: 1.0, Function.TRAIN: 2.0, Function.SCORE: 2.0}
"""Seconds of an operation before the first was measured. A step is one, also while it scores."""
MIN_S = 1e-3
"""Minimum of every expected operation, so that no ratio has a zero below."""

Key = tuple[str, Tier, Tier]
"""Executor, tier before, tier after."""


@dataclass(frozen=True)
class Rates:
    """Prior of moves that were never measured: bytes a second, and seconds that do not depend on bytes.

    Defaults are cautious ones for a GPU behind PCIe: 8 GiB/s to and from host memory, 1 GiB/s from disk, 10 s for an engine's start,
    15 s more for a process.
    """

    host_bytes_per_s: float = 8 * 2.0**30
    disk_bytes_per_s: float = 2.0**30
    fixed_s: float = 0.1
    engine_s: float = 10.0
    process_s: float = 15.0


@dataclass(frozen=True)
class Moves:
    """Durations of moves by executor and tiers."""

    measured: Mapping[Key, Quantiles] = field(default_factory=dict[Key, Quantiles])
    rates: Rates = Rates()

    def seconds(self, executor: str, from_tier: Tier, to_tier: Tier, size_bytes: int) -> float:
        """Expected seconds of one move. `size_bytes`: what the executor has on the device while awake."""
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
    """Quantiles of the newest measurements of each move, the oldest first; moves without one are left out."""
    found: dict[Key, Quantiles] = {}
    for key, durations in durations_s.items():
        ordered = sorted(list(durations)[-NEWEST:])
        if ordered:
            found[key] = Quantiles(ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))])
    return found


def piece_s(measured_s: float | None, function: Function) -> float:
    """Expected seconds of one operation. `measured_s`: the mean that its executor measured, in its batches; None before the first."""
    return max(MIN_S, measured_s) if measured_s else PRIOR_S[function]
