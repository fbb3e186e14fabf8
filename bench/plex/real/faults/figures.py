"""Outcomes of runs to figures, and what must hold."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

TOLERANCE_S = 3.0
"""By which tasks may vary from run to run."""


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """By kind of fault, and of all runs together."""
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for one in (fault for each in runs for fault in each["faults"]):
        by_kind.setdefault(one["kind"], []).append(one)
    sums = {name: sum(one[name] for one in runs) for name in ("tasks", "steps", "slices", "held_ms", "booked_ms", "looks")}
    recorded = {name: sum(one[name] for one in runs) for name in ("held_by_several", "computing_together")}
    return {
        "faults": sum(len(one["faults"]) for one in runs),
        **sums,
        **recorded,
        "differing": [task for one in runs for task in one["differing"]],
        "replayed": [task for one in runs for task in one.get("replayed", [])],
        "kinds": {kind: _kind(outcomes) for kind, outcomes in by_kind.items()},
    }


def complaints(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What does not hold: one sentence each."""
    found: list[str] = []
    for one in runs:
        name = one["run"]
        found += [f"{name}: {task} has other adapters than in the undisturbed run" for task in one["differing"]]
        found += [f"{name}: {one[key]} {what}" for key, what in RECORDED.items() if one[key]]
        if one["held_ms"] != one["booked_ms"]:
            found.append(f"{name}: {one['held_ms']} ms were held, and {one['booked_ms']} ms are booked")
        found += [f"{name}: {fault['kind']}: {reason}" for fault in one["faults"] for reason in _of_fault(fault)]
    return found


RECORDED = {"held_by_several": "looks at several holders", "computing_together": "windows in which several computed"}


def _of_fault(fault: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    if fault.get("within") is False:
        found.append(f"in use again after {fault['in_use_after_s']} s, allowed are {fault['allowed_s']} s")
    if "hung_s" in fault and fault["hung_s"] > fault["hung_allowed_s"]:
        found.append(f"hung for {fault['hung_s']} s, allowed are {fault['hung_allowed_s']} s")
    if "later_s" in fault:
        if fault["later_s"] > fault["attempts_s"] + TOLERANCE_S:
            found.append(f"the other pool's tasks took {fault['later_s']} s longer, and its attempts {fault['attempts_s']} s")
        if fault["why"]["cause"] != "accelerator" or not fault["pools"]:
            found.append(f"nothing says why: {fault['why']}, {fault['pools']}")
    return found


def _kind(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Median and most. An executor that could not wake itself does not show that the accelerator is in use."""
    found: dict[str, Any] = {"times": len(outcomes)}
    outcomes = [one for one in outcomes if one.get("by") is None or one["by"] != one.get("executor")]
    for name in ("in_use_after_s", "wake_s", "hung_s", "ready_after_s"):
        if values := [one[name] for one in outcomes if one.get(name) is not None]:
            found[name] = [round(statistics.median(values), 2), max(values)]
    if within := [one["within"] for one in outcomes if "within" in one]:
        found["within"] = sum(within)
    return found
