"""Figures of many runs: medians and spread of each arm, and each arm against pools that have the accelerator to themselves."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from bench.harness.services import BenchError
from bench.plex.real.arms import DEDICATED, RATIO
from bench.plex.real.workloads import Workload
from common.accelerators import trace as traces
from common.accelerators.trace import Trace
from common.pools.memory import GIB
from scheduler_svc.accelerators.decisions.advice import advice
from scheduler_svc.accelerators.decisions.load import Worth


def summary(workload: Workload, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all runs of a workload say."""
    by_arm: dict[str, list[Mapping[str, Any]]] = {}
    for one in runs:
        by_arm.setdefault(one["arm"], []).append(one)
    alone = by_arm.get(DEDICATED.name, [])
    found: dict[str, Any] = {"workload": asdict(workload), "arms": {name: _arm(of_arm, alone) for name, of_arm in sorted(by_arm.items())}}
    if alone:
        found["bubble_alone"] = [_spread(values) for values in zip(*(one["bubble"] for one in alone), strict=True)]
        found["bound"] = round(statistics.median(bound(one) for one in alone), 4)
    shared = [traced(one) for one in by_arm.get(RATIO.name, []) if one.get("trace")]
    if shared:
        found["planned"] = _planned(shared, workload)
        if apart := [replace(traced(one), executors=shared[0].executors) for one in alone if one.get("trace")]:
            found["planned_alone"] = _planned(apart, workload)
    found["equal_digests"] = equal_digests(runs)
    return found


def traced(run: Mapping[str, Any]) -> Trace:
    """What `marlaas pools trace` wrote after a run, of all its stacks."""
    return traces.parsed(line for part in run["trace"] for line in part)


def advised(trace: Trace, workload: Workload) -> Worth:
    """What `marlaas pools plan` expects of sharing an accelerator of the workload's memory."""
    together = advice(trace, (), int(workload.memory_gib * GIB)).together
    if together is None:
        raise BenchError(f"{workload.name} has a single pool")
    return together.worth


def _planned(found: Sequence[Trace], workload: Workload) -> dict[str, list[float]]:
    worths = [advised(one, workload) for one in found]
    return {"saved": _spread([one.saved_share for one in worths]), "slowdown": _spread([one.slowdown for one in worths])}


def bound(alone: Mapping[str, Any]) -> float:
    """Largest share of accelerator-seconds that sharing can save: 1 − max(sum of busy times, longest alone) / sum of alone."""
    busy_s = sum(alone["busy_s"].values())
    longest_s = max(_pool_s(alone).values())
    return 1 - max(busy_s, longest_s) / alone["accelerator_s"]


def equal_digests(runs: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """By task: whether every run that trained it ended with the same adapters, version by version."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for one in runs:
        for task, digests in one["digests"].items():
            found.setdefault(task, set()).add(tuple(digests))
    return {task: len(each) == 1 for task, each in sorted(found.items())}


def _arm(runs: Sequence[Mapping[str, Any]], alone: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "runs": len(runs),
        "accelerator_s_per_step": _spread([one["accelerator_s_per_step"] for one in runs]),
        "peak_private_mib": max(part["peak_private_mib"] for one in runs for part in one["recorded"]),
        "looks": sum(part["looks"] for one in runs for part in one["recorded"]),
        "held_by_several": sum(part["held_by_several"] for one in runs for part in one["recorded"]),
        "computing_together": sum(part["computing_together"] for one in runs for part in one["recorded"]),
        "load": _spread([one["load"] for one in runs]),
    }
    booked = [part for one in runs for part in one["booked"] if part]
    if booked:
        found["booked"] = {
            "switches": statistics.median(part["switches"] for part in booked),
            "switch_share": round(statistics.median(part["switch_s"] / part["wall_s"] for part in booked), 4),
            "p90_wait_s": round(statistics.median(part["wait_s"]["p90"] for part in booked), 3),
            "unaccounted_share": max(part["unaccounted_share"] for part in booked),
            "wrongly_booked": sum(part["wrongly_booked"] for part in booked),
            "slices": sum(part["booked"] for part in booked),
        }
    if alone:
        apart = statistics.median(one["accelerator_s_per_step"] for one in alone)
        alone_s = {task: statistics.median(one["task_s"][task] for one in alone) for task in alone[0]["task_s"]}
        slower = [statistics.mean(one["task_s"][task] / alone_s[task] for task in one["task_s"]) for one in runs]
        found["saved"] = _spread([1 - one["accelerator_s_per_step"] / apart for one in runs])
        found["slowdown"] = _spread(slower)
    return found


def _pool_s(alone: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for task, seconds in alone["task_s"].items():
        pool = task.rpartition("-")[0]
        found[pool] = max(found.get(pool, 0.0), seconds)
    return found


def _spread(values: Sequence[float]) -> list[float]:
    """Median, least and greatest."""
    return [round(statistics.median(values), 4), round(min(values), 4), round(max(values), 4)]
