"""What an executor's tiers free, how long moves take, and what they leave behind."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

from bench.harness import part, report
from bench.harness.services import BenchError
from bench.plex.real.tiers.orders import Executor
from common.accelerators import Tier

MIB = 2**20
WINDOW_S = 2.0
WARM_CYCLES = 4
LAST = 3
CYCLED = (Tier.HOST, Tier.DISK)
SEED = 1


def tiers(executor: Executor, cycles: int, closings: int) -> dict[str, Any]:
    """Each tier, then cycles; `tiers` and `cycles` of the executor's figures."""
    moves = Moves()
    found: dict[str, dict[str, Any]] = {}
    for tier in (Tier.DEVICE, *CYCLED, Tier.NONE):
        found[tier] = _tier(executor, tier, moves)
        part.keep({"tiers": found})
    cycled = _cycles(executor, cycles, moves)
    for _ in range(closings - 1):
        moves.park(executor, Tier.NONE)
        moves.wake(executor, Tier.NONE)
    for tier, one in found.items():
        one |= {"park_s": summary(moves.parks[tier]), "wake_s": summary(moves.wakes[tier])}
    return {"tiers": found, "cycles": cycled}


def sequences(executor: Executor, wanted: int, most_s: float) -> dict[str, Any]:
    """Random sequences of moves up to number `wanted`; none begins after `most_s`."""
    began = time.monotonic()
    played = executor.order(f"sequences {wanted} {SEED} {most_s}", most_s)
    return played | {"seconds": round(time.monotonic() - began, 1)}


class Moves:
    """Seconds of moves by tier, as the executor measured them."""

    def __init__(self) -> None:
        self.parks: dict[str, list[float]] = {tier: [] for tier in Tier}
        self.wakes: dict[str, list[float]] = {tier: [] for tier in Tier}

    def park(self, executor: Executor, tier: Tier) -> None:
        reached, seconds = executor.order(f"park {tier}")
        if reached != tier:
            raise BenchError(f"ordered to tier '{tier}', it parked in '{reached}'")
        self.parks[tier].append(seconds)

    def wake(self, executor: Executor, tier: Tier) -> None:
        reached, seconds = executor.order("wake")
        if reached != Tier.DEVICE:
            raise BenchError(f"it woke to tier '{reached}'")
        self.wakes[tier].append(seconds)


def _tier(executor: Executor, tier: Tier, moves: Moves) -> dict[str, Any]:
    """One park: memory before and after it, and the processor time of the parked processes."""
    executor.order("use")
    executor.order("fill")
    held, cache = executor.order("bytes")
    awake, on_device = executor.private_bytes(), executor.device_bytes()
    moves.park(executor, tier)
    parked, after = executor.private_bytes(), executor.device_bytes()
    found = {
        "held_mib": mib(held),
        "cache_mib": mib(cache),
        "awake_mib": mib(awake),
        "parked_mib": mib(parked),
        "file_mib": mib(executor.file_bytes()),
        "freed_share": round((awake - parked) / held, 4),
        "processor_share": round(executor.processor_share(WINDOW_S), 5),
    }
    if on_device is not None and after is not None:
        found |= {"device_mib": mib(on_device), "device_parked_mib": mib(after), "freed_share": round((on_device - after) / held, 4)}
    if tier is Tier.DEVICE:  # the filled cache is no cache of any prompt
        executor.order(f"park {Tier.HOST}")
        executor.order("wake")
    else:
        moves.wake(executor, tier)
    executor.order("use")
    return found


def _cycles(executor: Executor, cycles: int, moves: Moves) -> dict[str, Any]:
    """Cycles of all near tiers, with work in each; growth of what stays when parked, from after the first few to the last.

    The last is the least of `LAST` parks: what is gone at the next one was not left behind.
    """
    stays: dict[str, list[int]] = {tier: [] for tier in CYCLED}
    for number in range(cycles):
        tier = CYCLED[number % len(CYCLED)]
        executor.order("use")
        moves.park(executor, tier)
        stays[tier].append(executor.private_bytes())
        moves.wake(executor, tier)
        if number % 4 == 0:
            moves.park(executor, Tier.DEVICE)
            moves.wake(executor, Tier.DEVICE)
    warm = WARM_CYCLES // len(CYCLED)
    left = max((min(sizes[-LAST:]) - max(sizes[:warm]) for sizes in stays.values() if len(sizes) > warm), default=0)
    return {"cycles": cycles, "left_mib": mib(left)}


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Median, 90th percentile and number."""
    if not seconds:
        return {"n": 0}
    return {
        "median": round(statistics.median(seconds), 4),
        "p90": round(report.percentile(seconds, 0.9), 4),
        "n": len(seconds),
    }


def mib(size: int) -> float:
    return round(size / MIB, 1)
