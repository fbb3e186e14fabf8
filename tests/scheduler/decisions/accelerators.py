"""Executors of one accelerator, for tests: of equal size, so that one fits on the device, with moves of round durations."""

from common.accelerators import Function, Tier
from scheduler_svc.accelerators.decisions.state import Demand, Holding, MemoryBudget, Quantiles, Rules
from scheduler_svc.accelerators.decisions.tiers import Moves

SWITCH_S = 2.0
"""Of every switch below between executors of which one fits on the device: a second to park and one to wake."""
RULES = Rules(MemoryBudget(device_bytes=100, host_bytes=1000))
NEVER_S = float("inf")


def demand(name: str, **changes: object) -> Demand:
    """An executor in host memory with three seconds of work that was ready at 0, which fills the device."""
    values: dict[str, object] = {
        "executor": name,
        "pool": name,
        "function": Function.TRAIN,
        "tier": Tier.HOST,
        "device_bytes": 100,
        "host_bytes": 100,
        "deepest": Tier.DISK,
        "ready_since_s": 0.0,
        "parked_since_s": -NEVER_S,
        "work_s": 3.0,
    }
    return Demand(**(values | changes))  # type: ignore[arg-type]


def idle(name: str, **changes: object) -> Demand:
    return demand(name, **{"ready_since_s": None, "work_s": 0.0} | changes)


def holding(name: str, **changes: object) -> Holding:
    values: dict[str, object] = {
        "executor": name,
        "awake_s": 0.0,
        "switch_s": SWITCH_S,
        "running": None,
        "has_started": True,
        "stay_since_s": 0.0,
        "stay_switch_s": SWITCH_S,
    }
    return Holding(**(values | changes))  # type: ignore[arg-type]


def moves(*names: str) -> Moves:
    """A second to park in host memory or to wake from it, four to wake from disk."""
    durations = {(Tier.DEVICE, Tier.HOST): 1.0, (Tier.HOST, Tier.DEVICE): 1.0, (Tier.DEVICE, Tier.DISK): 0.1, (Tier.DISK, Tier.DEVICE): 4.0}
    return Moves({(name, *between): Quantiles(seconds, seconds) for name in names for between, seconds in durations.items()})
