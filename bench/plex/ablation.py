"""What forecasts of gaps, backfill and residency save: the policy `ratio` with and without each, on every simulated case.

    ratio        as it is
    no forecast  no gap is known: a holder without work is never waited for, no gap is filled, and tiers do not know who is back first
    patience     no forecast, but a holder without work is always kept for half a switch
    neither      no forecast, and no residency

Cases: the 36 cells with gaps of half a task's time or more, dear switches and few tasks; the workloads of real runs (several trajectories
of several turns, slow tools) with measured moves and times, on a device for one pool and for one and a half; 400 random histories; the
cluster's arm `ours`. A gain is by how many points of accelerator-seconds `ratio` is better than the arm: against the pools each alone
(cells, workloads), else in per cent of the makespan (histories) or of the mean time to completion (cluster).
"""

import argparse
import ast
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

from bench.harness import report
from bench.plex import cluster, histories
from bench.plex.accelerator import SharedAccelerator
from bench.plex.cells import MIN_STEPS, STEPS, all_cells
from bench.plex.pieces import Predictions
from bench.plex.real import predict
from bench.plex.real.calibration import fitted
from bench.plex.real.workloads import BUSY, IDLE, PAIR, THIRD, THREE, TWO, Workload
from bench.plex.tasks import simulate
from bench.plex.workloads import Cell, cell_rules, cell_trace
from common.accelerators import Function, Policy, Tier
from common.accelerators.trace import Executor, Trace
from scheduler_svc.accelerators.demands import REPEATED
from scheduler_svc.decisions.accelerators.state import Budget, Quantiles, Rules

ARMS = ("no forecast", "patience", "neither")
SEEDS = tuple(range(100, 104))
WORKLOADS, WORKLOAD_SEEDS = (TWO, PAIR, THIRD, THREE, BUSY, IDLE), range(30)
HISTORIES, SMALL_BUDGET, LARGE_BUDGET = 400, 100, 150
HELD = {"rollout": 60, "trainer": 40}
Makespan = Callable[[str], float]


def ablated(arm: str, rules: Rules) -> Rules:
    """Sets what the simulator's executors are expected to do, too: to be called before each run."""
    Predictions.gap = FORECASTS.get(arm, no_forecast)  # type: ignore[method-assign]
    return replace(rules, residency=0.0) if arm == "neither" else rules


def no_forecast(self: Predictions, pool: str) -> Quantiles | None:  # noqa: ARG001
    return None


FORECASTS: dict[str, Any] = {"ratio": Predictions.gap, "patience": lambda *_: Quantiles(0.0, 0.0)}


def of_cell(cell: Cell, seeds: Sequence[int]) -> dict[str, list[float]]:
    steps, found = max(MIN_STEPS, STEPS // cell.tasks), dict[str, list[float]]()
    for seed in seeds:
        trace, rules = cell_trace(cell, steps, seed), cell_rules(cell)
        _add(found, trace, rules, seed)
    return found


def _add(found: dict[str, list[float]], trace: Trace, rules: Rules, seed: int) -> None:
    alone_rules = ablated("no forecast", replace(rules, policy=Policy.FCFS))
    alone_s = sum(simulate(trace.of_pool(pool), alone_rules, seed, is_awake=True).makespan_s for pool in trace.pools)
    base_s = simulate(trace, ablated("ratio", rules), seed).makespan_s
    for arm in ARMS:
        other_s = simulate(trace, ablated(arm, rules), seed).makespan_s
        found.setdefault(arm, []).append(round(100 * (other_s - base_s) / alone_s, 3))


def of_workload(workload: Workload, budget: int) -> dict[str, list[float]]:
    rows, tiers, found = report.read("plex-predicted")["calibration"], report.read("plex-tiers")["bases"], dict[str, list[float]]()
    costs = {load.base: fitted(load, rows[load.base]) for load in workload.pools}
    tables: list[Executor] = []
    for load in workload.pools:
        for service, kind in (("rollout", "sampler"), ("trainer", "trainer")):
            known = tiers[load.base][kind]["tiers"]
            moves: dict[tuple[Tier, Tier], tuple[float, ...]] = {}
            for tier in (Tier.DEVICE, Tier.HOST, Tier.DISK):
                for between, what in (((Tier.DEVICE, tier), "park_s"), ((tier, Tier.DEVICE), "wake_s")):
                    moves[between] = tuple(known[tier][what][share] for share in ("median", "median", "median", "p90"))
            functions = (Function.GENERATE,) if service == "rollout" else (Function.TRAIN, Function.SCORE)
            gain = costs[load.base].gain(predict.PLACES) if service == "rollout" else (1.0,)
            places = predict.PLACES if service == "rollout" else 1
            tables.append(
                Executor(
                    f"{service}-{load.base}",
                    load.base,
                    functions,
                    HELD[service],
                    HELD[service],
                    Tier.HOST,
                    moves=moves,
                    places=places,
                    gain=gain,
                    refill=REPEATED if places > 1 else 0.0,
                )
            )
    for seed in WORKLOAD_SEEDS:
        trace = Trace(tuple(tables), predict._tasks(workload, costs, Random(seed)))
        rules = Rules(Budget(budget, 10_000))
        alone_s = sum(
            simulate(trace.of_pool(pool), ablated("no forecast", replace(rules, policy=Policy.FCFS)), seed, is_awake=True).makespan_s
            for pool in trace.pools
        )
        base_s = simulate(trace, ablated("ratio", rules), seed).makespan_s
        for arm in ARMS:
            other_s = simulate(trace, ablated(arm, rules), seed).makespan_s
            found.setdefault(arm, []).append(round(100 * (other_s - base_s) / alone_s, 3))
    return found


def of_history(seed: int) -> dict[str, float]:
    one = histories.random_history(50_000 + seed)
    base_s = simulate(one.trace, ablated("ratio", one.rules), seed).makespan_s
    return {arm: 100 * (simulate(one.trace, ablated(arm, one.rules), seed).makespan_s / base_s - 1) for arm in ARMS}


def of_cluster(factor: float) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for seed in cluster.SEEDS:
        made: dict[str, float] = {}
        for arm in ("ratio", *ARMS):
            original = SharedAccelerator.__init__

            def init(self: SharedAccelerator, rules: Rules, *rest: Any, arm: str = arm, original: Any = original) -> None:
                original(self, ablated(arm, rules), *rest)

            SharedAccelerator.__init__ = init  # type: ignore[method-assign]
            made[arm] = cluster.measure("ours", cluster.JOBS, cluster.ACCELERATORS, factor, seed)["completion_s"]
            SharedAccelerator.__init__ = original  # type: ignore[method-assign]
        for arm in ARMS:
            found.setdefault(arm, []).append(round(100 * (made[arm] / made["ratio"] - 1), 3))
    return found


def described(case: str, gains: dict[str, list[float]]) -> dict[str, Any]:
    return {
        "case": case,
        "seeds": len(gains[ARMS[0]]),
        "mean": {arm: round(fmean(each), 2) for arm, each in gains.items()},
        "error": {arm: round(stdev(each) / len(each) ** 0.5, 2) for arm, each in gains.items()},
    }


def chosen_cells() -> list[Cell]:
    """Those in which a holder has gaps, and a switch costs enough for it to matter."""
    return [one for one in all_cells() if one.pools <= 3 and one.tasks <= 2 and one.idle >= 0.5 and one.switch >= 0.1]


def kept(path: Path | None) -> list[dict[str, Any]]:
    """Rows that an earlier start has printed: everything but the cells."""
    return [ast.literal_eval(line) for line in path.read_text().splitlines() if line.startswith("{")] if path is not None else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, help="what an earlier start has printed")
    options = parser.parse_args()
    machine = report.machine()
    cells, rows = chosen_cells(), kept(options.rows)
    with ProcessPoolExecutor(2) as pool:
        if not rows:
            clusters = [(f"cluster, switch x{factor:g}", pool.submit(of_cluster, factor)) for factor in (1.0,)]
            works = [
                (f"{one.name}, room for {budget / 100:g} pools", pool.submit(of_workload, one, budget))
                for one in WORKLOADS
                for budget in (SMALL_BUDGET, LARGE_BUDGET)
            ]
            played = list(pool.map(of_history, range(HISTORIES), chunksize=10))
            rows.append(described(f"{HISTORIES} random histories", {arm: [one[arm] for one in played] for arm in ARMS}))
            rows += [described(name, one.result()) for name, one in works]
            for row in rows:
                print(row, flush=True)
            rows += [described(name, one.result()) for name, one in clusters]
            print(rows[-1], flush=True)
        first = list[dict[str, list[float]]]()
        for cell, found in zip(cells, pool.map(of_cell, cells, [SEEDS] * len(cells)), strict=True):
            print(cell, found, flush=True)
            first.append(found)
    named = [f"cell {one.pools} pools, {one.tasks} tasks, idle {one.idle:g}, switch {one.switch:g}" for one in cells]
    rows += [described(name, one) for name, one in zip(named, first, strict=True)]
    of_cells = [row for row in rows if row["case"].startswith("cell ")]
    summary = {
        arm: {
            "cells": round(fmean(row["mean"][arm] for row in of_cells), 3),
            "largest_gain": max(rows, key=lambda row: row["mean"][arm]),
            "largest_loss": min(rows, key=lambda row: row["mean"][arm]),
            "cases_that_gain_2": sum(row["mean"][arm] >= 2 for row in rows),
        }
        for arm in ARMS
    }
    path = report.write("plex-ablation", {"machine": machine, "cases": len(rows), "summary": summary}, ("bench/plex",))
    head = json.dumps(json.loads(path.read_text()), indent=1)[:-2]
    path.write_text(head + ',\n "rows": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n ]\n}\n")
    print(json.dumps(summary, indent=1), f"written: {path}", os.getpid())


if __name__ == "__main__":
    main()
