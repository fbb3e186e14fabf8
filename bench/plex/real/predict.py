"""Simulated against real, out of sample: `python -m bench.plex.real.predict`.

Moves are those of runs of `two` and `pair`, times of the calibration: no run of the predicted workload `third` (three pools, other tools)
is read before its figures are simulated. Then both are compared, under two policies.
"""

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from bench.harness import report
from bench.harness.services import run_or_exit
from bench.plex.real import arms, bases, calibration
from bench.plex.real.calibration import Costs, Row
from bench.plex.real.kept import FOLDER, MEASURES, Kept, kept_in
from bench.plex.real.workloads import PAIR, THIRD, TWO, PoolLoad, Workload, task_specs
from bench.plex.tasks import simulate
from common.accelerators import Function, Tier
from common.accelerators import trace as traces
from common.accelerators.trace import ENVIRONMENT, Executor, Phase, Task, Trace
from common.pools import Accelerator
from scheduler_svc.accelerators.demands import REPEATED, rules_of

SEEDS = range(40)
PLACES = 16
"""Requests at once that a pool of these workloads takes."""
FIGURES = ("makespan_s", "accelerator_s_per_step", "switches", "p90_wait_s")
WITHIN = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of base models and finished runs")
    parser.add_argument("--commit", default=report.commit(), help="whose runs are read")
    options = parser.parse_args()
    machine, kept = report.machine(), Kept(options.folder, options.commit)
    known = Known.of(kept)
    inside = {one.name: compared(simulated(arms.RATIO, one, known), map(_figures, kept.runs(one, arms.RATIO))) for one in (TWO, PAIR)}
    policies = {arm.name: compared(simulated(arm, THIRD, known), map(_figures, kept.runs(THIRD, arm))) for arm in (arms.FCFS, arms.RATIO)}
    result: dict[str, object] = {
        "machine": machine,
        "runs_of": options.commit,
        "calibration": known.rows,
        "order_s": known.order_s,
        "in_sample": inside,
        "policies": policies,
    }
    print(json.dumps({key: result[key] for key in ("order_s", "in_sample", "policies")}, indent=1))
    print(f"written: {report.write('plex-predicted', result, MEASURES)}")


@dataclass(frozen=True)
class Known:
    """What the simulator is given."""

    tables: Mapping[str, Executor]
    rows: Mapping[str, Sequence[Row]]
    """By base model, of the calibration."""
    order_s: float = 0.0
    """Seconds of a switch beyond its moves: orders, answers and locks."""

    @classmethod
    def of(cls, kept: Kept) -> "Known":
        """From kept runs of `two` and `pair` under `ratio`, and the calibration, which is measured once for a commit."""
        known = cls(_tables(kept), _calibrated(kept, THIRD.pools))
        return replace(known, order_s=order_s(known, {one: kept.runs(one, arms.RATIO) for one in (TWO, PAIR)}))

    def costs(self, load: PoolLoad) -> Costs:
        return calibration.fitted(load, self.rows[load.base])

    def table(self, service: str, pool: str) -> Executor:
        one = self.tables[f"{service}-{pool}"]
        moves = {
            between: tuple(each + self.order_s for each in seconds) if between[1] is Tier.DEVICE else seconds
            for between, seconds in one.moves.items()
        }
        return replace(one, moves=moves)


def order_s(known: Known, seen: Mapping[Workload, Sequence[Mapping[str, Any]]]) -> float:
    """Mean real switch of known workloads less the simulated one of moves alone."""
    beyond: list[float] = []
    for workload, runs in seen.items():
        real = statistics.median(part["switch_s"] / part["switches"] for run in runs for part in run["booked"])
        beyond.append(real - simulated(arms.RATIO, workload, known)["switch_s"])
    return round(max(0.0, statistics.mean(beyond)), 4)


def simulated(arm: arms.Arm, workload: Workload, known: Known, seeds: Iterable[int] = SEEDS) -> dict[str, float]:
    """Medians over many seeds, which decide the tools' times and which of the measured moves each move takes."""
    placed = {"device": "cpu", "cores": str(arms.CORE), "memory_gib": workload.memory_gib}
    accelerator = Accelerator.model_validate({**placed, **(arm.options or {})})
    rules, costs = rules_of(accelerator, []), {load.base: known.costs(load) for load in workload.pools}
    used, rows = _used(workload, known, costs), list[dict[str, float]]()
    for seed in seeds:
        run = simulate(Trace(used, _tasks(workload, costs, Random(seed))), rules, seed)
        counts, steps = run.accelerator.counts, sum(len(one.step_s) for one in run.tasks)
        waits = report.percentile(counts.executor_waits_s, 0.9)
        values = (run.makespan_s, run.makespan_s / steps, float(counts.switches), waits, counts.switch_s / counts.switches)
        rows.append(dict(zip((*FIGURES, "switch_s"), values, strict=True)))
    return {name: round(statistics.median(row[name] for row in rows), 4) for name in rows[0]}


def _used(workload: Workload, known: Known, costs: Mapping[str, Costs]) -> tuple[Executor, ...]:
    found: list[Executor] = []
    for pool in (load.base for load in workload.pools):
        found.append(replace(known.table("rollout", pool), places=PLACES, gain=costs[pool].gain(PLACES), refill=REPEATED))
        found.append(known.table("trainer", pool))
    return tuple(found)


def _tasks(workload: Workload, costs: Mapping[str, Costs], random: Random) -> tuple[Task, ...]:
    return tuple(_task(load, spec.name, costs[load.base], random) for load in workload.pools for spec in task_specs(load, 1))


def _task(load: PoolLoad, name: str, costs: Costs, random: Random) -> Task:
    """What a step passes off the accelerator is in equal parts before each turn's request and after the last."""
    off_s = costs.off_s / (load.turns + 2)

    def member() -> tuple[Phase, ...]:
        phases: list[Phase] = [(ENVIRONMENT, off_s)]
        for _ in range(load.turns):
            phases += [(Function.GENERATE, costs.turn_s(1)), (ENVIRONMENT, off_s + load.tool_s * random.uniform(0.5, 1.5))]
        return tuple(phases)

    members = tuple(tuple(member() for _ in range(load.groups * load.size)) for _ in range(load.steps))
    after = ((ENVIRONMENT, off_s), (Function.TRAIN, costs.train_s))
    return Task(name, name, load.base, 0.0, (after,) * load.steps, members=members)


def compared(predicted: Mapping[str, float], runs: Iterable[Mapping[str, float]]) -> dict[str, Any]:
    """Of each figure what was simulated, median and extremes of the runs, and by what share the first is above that median."""
    real, rows = list(runs), dict[str, Any]()
    for name in FIGURES:
        values = [one[name] for one in real]
        median = statistics.median(values)
        off = predicted[name] / median - 1
        rows[name] = {
            "simulated": predicted[name],
            "real": [round(value, 4) for value in (median, min(values), max(values))],
            "off_by": round(off, 4),
            "is_within": abs(off) <= WITHIN,
        }
    return {"runs": len(real), **rows}


def _figures(run: Mapping[str, Any]) -> dict[str, float]:
    [booked] = run["booked"]
    values = (run["accelerator_s"], run["accelerator_s_per_step"], booked["switches"], booked["wait_s"]["p90"])
    return dict(zip(FIGURES, values, strict=True))


def _tables(kept: Kept) -> dict[str, Executor]:
    """Executors with their moves, from all kept runs of the workloads that are not predicted."""
    found: dict[str, Executor] = {}
    for workload in (TWO, PAIR):
        for run in kept.runs(workload, arms.RATIO):
            for one in traces.parsed(line for part in run["trace"] for line in part).executors:
                before = found.get(one.executor)
                moves: dict[tuple[Tier, Tier], tuple[float, ...]] = dict(before.moves) if before else {}
                for between, seconds in one.moves.items():
                    moves[between] = (*moves.get(between, ()), *seconds)
                found[one.executor] = replace(one, moves=moves)
    return found


def _calibrated(kept: Kept, pools: Sequence[PoolLoad]) -> dict[str, list[Row]]:
    """By base model; measured once for a commit."""
    path = kept_in(kept.folder, "calibration", kept.commit) / "costs.json"
    found: dict[str, list[Row]] = json.loads(path.read_text()) if path.exists() else {}
    models = bases.make(kept.folder / "bases")
    for load in pools:
        if load.base not in found:
            found[load.base] = calibration.measure(load, models)
            path.write_text(json.dumps(found))
            print(f"{load.base}: {found[load.base]}", flush=True)
    return found


if __name__ == "__main__":
    run_or_exit("bench.plex.real.predict", main)
