"""64 accelerators and 500 jobs, as in PlexRL's set-up: samplers of their own, trainers that share accelerators.

Published of PlexRL's jobs (arXiv 2605.20863) are three sizes of models, and the shares of time in which their training accelerators idle:
80.10, 70.67 and 81.11 %. All else is made up here: how long steps are, how many a job has, when jobs come, and what a switch costs. So are
the placements, whose definitions are not published: pack, spread, and spread with backfill are ours under the same names
(`decisions/accelerators/placement.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any

from bench.plex.accelerator import SharedAccelerator
from bench.plex.events import Events
from bench.plex.tasks import RunningTask
from bench.plex.workloads import lognormal
from common.accelerators import Function, Policy, Tier
from common.accelerators.trace import ENVIRONMENT, Executor, Phase, Task
from scheduler_svc.decisions.accelerators.load import Profile
from scheduler_svc.decisions.accelerators.moves import Rates, prior_s
from scheduler_svc.decisions.accelerators.placement import Accelerator, PlacementPolicy, place
from scheduler_svc.decisions.accelerators.state import Budget, Rules

ACCELERATORS, JOBS = 64, 500
SMALL_ACCELERATORS, SMALL_JOBS = 2, 8
SEEDS, FACTORS = (0, 1, 2), (0.1, 0.3, 1.0, 3.0, 10.0)
PAPER = {"isolated": 1.0, "pack": 0.70, "spread": 0.65, "spread-backfill": 0.56}
"""Total completion time relative to isolated, as read from a summary of the paper, not the paper itself."""
GIB = 2**30
DEVICE_BYTES, HOST_BYTES = 45 * GIB, 256 * GIB
"""Of a trainer, and host memory for each accelerator: five trainers fit."""
STEPS = 24
"""Mean steps of a job."""
OPERATION_SPREAD, AWAY_SPREAD, STEPS_SPREAD = 0.2, 0.5, 0.5
"""Coefficients of variation."""


@dataclass(frozen=True)
class Size:
    """A size of model: `idle`, published, of its training accelerators; `step_s`, made up, of a step alone."""

    name: str
    idle: float
    step_s: float


SIZES = (Size("7B", 0.8010, 120.0), Size("30B", 0.7067, 240.0), Size("235B", 0.8111, 480.0))


@dataclass(frozen=True)
class Arm:
    placement: PlacementPolicy
    slicing: Policy


ARMS = {
    "isolated": Arm(PlacementPolicy.ISOLATED, Policy.FCFS),
    "pack": Arm(PlacementPolicy.PACK, Policy.FCFS),
    "spread": Arm(PlacementPolicy.SPREAD, Policy.FCFS),
    "spread-backfill": Arm(PlacementPolicy.SPREAD_BACKFILL, Policy.FCFS),
    "co-groups": Arm(PlacementPolicy.CO_GROUPS, Policy.ROUND_ROBIN),
    "ours": Arm(PlacementPolicy.SPREAD_BACKFILL, Policy.RATIO),
}


def jobs(count: int, accelerators: int, seed: int) -> list[Task]:
    """A pool for each job. They come at random in a quarter of the time that they take on accelerators of their own."""
    random = Random(f"cluster {seed}")
    drawn: list[tuple[str, tuple[tuple[Phase, ...], ...]]] = []
    for number in range(count):
        size = random.choice(SIZES)
        steps = max(3, round(lognormal(STEPS, STEPS_SPREAD, random)))
        drawn.append((f"{size.name}-{number:03}", tuple(_step(size, random) for _ in range(steps))))
    whole_s = sum(seconds for _, steps in drawn for phases in steps for _, seconds in phases)
    window_s = 0.25 * whole_s / accelerators
    return [Task(name, f"tenant-{number % 10}", name, random.uniform(0, window_s), steps) for number, (name, steps) in enumerate(drawn)]


def _step(size: Size, random: Random) -> tuple[Phase, ...]:
    away_s = lognormal(size.idle * size.step_s, AWAY_SPREAD, random)
    return ((ENVIRONMENT, away_s), (Function.TRAIN, lognormal((1 - size.idle) * size.step_s, OPERATION_SPREAD, random)))


def trainer(task: Task, factor: float) -> Executor:
    """Moves take what their bytes suggest, times `factor`; pausing on the device is as fast always."""
    moves = {
        (from_tier, to_tier): (factor * prior_s(from_tier, to_tier, DEVICE_BYTES, Rates()),)
        for from_tier, to_tier in ((Tier.DEVICE, Tier.HOST), (Tier.HOST, Tier.DEVICE), (Tier.DEVICE, Tier.DISK), (Tier.DISK, Tier.DEVICE))
    }
    return Executor(f"trainer-{task.pool}", task.pool, (Function.TRAIN,), DEVICE_BYTES, DEVICE_BYTES, Tier.HOST, moves=moves)


class Cluster:
    """All accelerators under one arm. Jobs without a place wait; places are looked for whenever a job comes or ends."""

    def __init__(self, arm: Arm, accelerators: int, factor: float, seed: int) -> None:
        self.events = Events()
        self.ended: dict[str, RunningTask] = {}
        self._arm, self._factor = arm, factor
        budget = Budget(DEVICE_BYTES, HOST_BYTES)
        rules = Rules(budget, policy=arm.slicing, max_wait_s=600.0, lead_s=300.0, window_s=120.0)
        names = [f"accelerator-{number:02}" for number in range(accelerators)]
        self.accelerators = {name: SharedAccelerator(rules, self.events, Random(f"{seed} {name}")) for name in names}
        self._placed: dict[str, Accelerator] = {name: Accelerator(name, budget) for name in names}
        self._waiting: list[Task] = []

    def run(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self.events.at(task.at_s, lambda task=task: self._come(task))
        self.events.run()
        for one in self.accelerators.values():
            one.finish()

    def _come(self, task: Task) -> None:
        self._waiting.append(task)
        self._place()

    def _place(self) -> None:
        found = place([_profile(task) for task in self._waiting], list(self._placed.values()), self._arm.placement)
        starting = [task for task in self._waiting if task.task in found.accelerators]
        self._waiting = [task for task in self._waiting if task.task not in found.accelerators]
        for task in starting:
            name = found.accelerators[task.task]
            self._placed[name] = self._placed[name].plus(_profile(task))
            self.accelerators[name].add(trainer(task, self._factor), Tier.DISK)
            RunningTask(task, self.accelerators[name], self.events, lambda one, name=name: self._end(one, name)).start()

    def _end(self, one: RunningTask, name: str) -> None:
        self.ended[one.task.task] = one
        self.accelerators[name].remove(f"trainer-{one.task.pool}")
        state = self._placed[name]
        self._placed[name] = Accelerator(name, state.budget, tuple(job for job in state.jobs if job.job != one.task.task))
        self.events.at(self.events.now_s, self._place)  # not now: the accelerator is in the middle of a decision


def _profile(task: Task) -> Profile:
    steps = len(task.steps)
    return Profile(task.task, task.pool, task.busy_s / steps, task.away_s / steps, steps, DEVICE_BYTES, DEVICE_BYTES)


def measure(name: str, count: int, accelerators: int, factor: float, seed: int) -> dict[str, float]:
    tasks = jobs(count, accelerators, seed)
    cluster = Cluster(ARMS[name], accelerators, factor, seed)
    cluster.run(tasks)
    ended = cluster.ended.values()
    counts = [one.counts for one in cluster.accelerators.values()]
    end_s = max(one.ended_s or 0.0 for one in ended)
    held_s = sum(one.held_s for one in counts)
    return {
        "makespan_s": end_s - min(task.at_s for task in tasks),
        "completion_s": fmean((one.ended_s or 0.0) - one.task.at_s for one in ended),
        "slowdown": fmean(sum(one.step_s) / (one.task.busy_s + one.task.away_s) for one in ended),
        "switching": sum(one.switch_s for one in counts) / held_s,
        "busy": sum(one.busy_s for one in counts) / (accelerators * end_s),
        "beyond_bound_s": max(max(one.executor_waits_s, default=0.0) - 600.0 - one.bound_s for one in counts),
    }


def run(*, small: bool) -> dict[str, Any]:
    count, accelerators = (SMALL_JOBS, SMALL_ACCELERATORS) if small else (JOBS, ACCELERATORS)
    seeds, factors = (SEEDS[:1], FACTORS[2:3]) if small else (SEEDS, FACTORS)
    rows: list[dict[str, Any]] = []
    for factor in factors:
        found = {name: [measure(name, count, accelerators, factor, seed) for seed in seeds] for name in ARMS}
        for name, runs in found.items():
            row: dict[str, Any] = {"switch_factor": factor, "arm": name}
            for what in ("makespan_s", "completion_s"):
                shares = [one[what] / base[what] for one, base in zip(runs, found["isolated"], strict=True)]
                row[what.replace("_s", "_of_isolated")] = {"mean": round(fmean(shares), 4), "seeds": [round(each, 4) for each in shares]}
            rows.append(row | {what: round(fmean(one[what] for one in runs), 3) for what in runs[0]})
            print(row, flush=True)
    return {
        "accelerators": accelerators,
        "jobs": count,
        "seeds": len(seeds),
        "switch_s": round(
            sum(seconds[0] for between, seconds in trainer(jobs(1, 1, 0)[0], 1.0).moves.items() if Tier.DISK not in between), 2
        ),
        "sizes": [{"size": one.name, "idle": one.idle, "step_s": one.step_s} for one in SIZES],
        "paper": PAPER,
        "rows": rows,
    }
