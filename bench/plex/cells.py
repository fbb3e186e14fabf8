"""Policies in 240 cells of pools, tasks, idle shares and costs of switches, on one accelerator.

`saved`: accelerator-seconds saved in per cent, against each pool alone on the whole accelerator, one after another, its executors awake
from the start. Tasks and their durations are the same under all policies.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import Any

from bench.harness.report import percentile
from bench.plex.tasks import Run, simulate
from bench.plex.workloads import Cell, cell_rules, cell_trace
from common.accelerators import Policy
from common.accelerators.trace import Trace
from scheduler_svc.accelerators.decisions import slicing
from scheduler_svc.accelerators.decisions.load import Profile, Worth, worth
from scheduler_svc.accelerators.decisions.situation import Situation
from scheduler_svc.accelerators.decisions.state import Idle, Keep, Reason, Rules

POOLS, TASKS, IDLE, SWITCH = (2, 3, 4), (1, 2, 4, 8), (0.3, 0.5, 0.7, 0.9), (0.01, 0.03, 0.1, 0.3, 1.0)
SEEDS = (0, 1, 2)
STEPS, MIN_STEPS = 48, 24
"""Steps of a pool's tasks together, and minimum of each."""
DEAR = 0.1
"""Cost of a switch, as a share of an operation, from which `ratio` is to be better."""
ABLATIONS: dict[str, Callable[[Rules], Rules]] = {
    "without residency": lambda rules: replace(rules, residency=0.0),
    "without a maximum wait": lambda rules: replace(rules, max_wait_s=1e9),
}
TURNS, WINDOW_S = "in turns", 6.0
"""A policy of the benchmark's own, and how long an executor with work keeps its turn."""
Row = dict[str, Any]


def all_cells() -> list[Cell]:
    return [Cell(*values) for values in product(POOLS, TASKS, IDLE, SWITCH)]


def arms() -> dict[str, Rules]:
    """Rules by name: the policies and turns, then `ratio` without some of its rules."""
    rules = cell_rules()
    named = {policy: replace(rules, policy=policy) for policy in Policy} | {TURNS: replace(rules, policy=Policy.FCFS)}
    return named | {name: change(rules) for name, change in ABLATIONS.items()}


def in_turns(seen: Situation) -> slicing.Decision:
    """Executors in the order of their ids, each until it has no work, or for WINDOW_S."""
    if seen.is_working and seen.holding is not None:
        window_ends_s = seen.holding.awake_s + WINDOW_S
        if seen.now_s < window_ends_s or not seen.candidates:
            return Keep(window_ends_s if seen.now_s < window_ends_s else slicing.NEVER_S)
    last = "" if seen.holding is None else seen.holding.executor
    following = min(seen.candidates, key=lambda one: (one.executor <= last, one.executor), default=None)
    return Idle(slicing.NEVER_S) if following is None else following.chosen(Reason.ORDER)


def measure(cell: Cell, seeds: Sequence[int], steps: int, names: Sequence[str] | None = None) -> Row:
    """Means over the seeds of one cell: what each arm saves, and what `worth` said before."""
    saved: dict[str, list[float]] = {}
    waits: dict[str, list[float]] = {}
    switching: dict[str, list[float]] = {}
    beyond: list[float] = []
    expected: list[float] = []
    for seed in seeds:
        trace = cell_trace(cell, steps, seed)
        alone_s = sum(_alone(trace, pool, seed).makespan_s for pool in trace.pools)
        expected.append(100 * predicted(trace, cell).saved_share)
        for name, rules in arms().items():
            if names is not None and name not in names:
                continue
            run = simulate(trace, rules, seed, policy=in_turns if name == TURNS else None)
            counts = run.accelerator.counts
            saved.setdefault(name, []).append(100 * (1 - run.makespan_s / alone_s))
            waits.setdefault(name, []).append(percentile(counts.operation_waits_s, 0.9))
            switching.setdefault(name, []).append(counts.switch_s / run.makespan_s)
            if name == Policy.RATIO:
                beyond.append(max(counts.executor_waits_s) - rules.max_wait_s - counts.bound_s)
    return {
        "pools": cell.pools,
        "tasks": cell.tasks,
        "idle": cell.idle,
        "switch": cell.switch,
        "saved": {name: round(fmean(values), 2) for name, values in saved.items()},
        "p90_wait_s": {name: round(fmean(values), 2) for name, values in waits.items()},
        "switching": {name: round(fmean(values), 4) for name, values in switching.items()},
        "predicted": round(fmean(expected), 2),
        "beyond_bound_s": round(max(beyond), 3) if beyond else None,
    }


def _alone(trace: Trace, pool: str, seed: int) -> Run:
    return simulate(trace.of_pool(pool), replace(cell_rules(), policy=Policy.FCFS), seed, is_awake=True)


def predicted(trace: Trace, cell: Cell) -> Worth:
    """What `worth` says of the cell before anything is played, from the tasks' mean times and the moves' medians."""
    profiles = [
        Profile(one.task, one.pool, one.busy_s / len(one.steps), one.away_s / len(one.steps), len(one.steps)) for one in trace.tasks
    ]
    return worth(profiles, dict.fromkeys(trace.pools, cell.switch_s))


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Means, and the comparison of `ratio` with first come first served."""
    names = list(rows[0]["saved"])
    apart = {id(row): row["saved"][Policy.RATIO] - row["saved"][Policy.FCFS] for row in rows}
    dear = [row for row in rows if row["switch"] >= DEAR]
    worst = sorted(rows, key=lambda row: apart[id(row)])[:5]
    rights = [(row["predicted"] > 0) == (row["saved"][Policy.RATIO] > 0) for row in rows]
    clear = [right for row, right in zip(rows, rights, strict=True) if abs(row["saved"][Policy.RATIO]) >= 3]
    return {
        "cells": len(rows),
        "saved": {name: round(fmean(row["saved"][name] for row in rows), 2) for name in names},
        "saved_by_switch": {
            str(switch): {name: round(fmean(row["saved"][name] for row in rows if row["switch"] == switch), 2) for name in names}
            for switch in sorted({row["switch"] for row in rows})
        },
        "p90_wait_s": {name: round(fmean(row["p90_wait_s"][name] for row in rows), 2) for name in names},
        "dear_cells": len(dear),
        "dear_points_over_fcfs": round(fmean(apart[id(row)] for row in dear), 2) if dear else None,
        "least_points_over_fcfs": round(min(apart.values()), 2),
        "cells_worse_than_fcfs": sum(points < -0.05 for points in apart.values()),
        "cells_worse_by_1": sum(points < -1 for points in apart.values()),
        "cells_worse_by_3": sum(points < -3 for points in apart.values()),
        "worst_cells": [
            {name: row[name] for name in ("pools", "tasks", "idle", "switch")} | {"points": round(apart[id(row)], 2)} for row in worst
        ],
        "cells_that_lose_by_sharing": sum(row["saved"][Policy.RATIO] < 0 for row in rows),
        "beyond_bound_s": max(row["beyond_bound_s"] for row in rows),
        "prediction_error": round(fmean(abs(row["predicted"] - row["saved"][Policy.RATIO]) for row in rows), 2),
        "sign_right": round(fmean(rights), 3),
        "sign_right_where_clear": round(fmean(clear), 3) if clear else None,
        "clear_cells": len(clear),
    }


def run(*, small: bool) -> dict[str, Any]:
    cells = [Cell(2, 1, 0.7, 0.1), Cell(2, 2, 0.3, 1.0)] if small else all_cells()
    rows = [measure(cell, SEEDS[:1] if small else SEEDS, 4 if small else max(MIN_STEPS, STEPS // cell.tasks)) for cell in cells]
    return {"seeds": 1 if small else len(SEEDS), "summary": summary(rows), "rows": rows}
