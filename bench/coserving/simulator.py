"""SIMULATION: a day on six engines of rollouts and eight that serve and lend, on discrete events.

Steps take what a measured engine's do: their costs are those of serving alone, of training alone, and of further tokens beside as many
rollouts as caps let in. Rollout tokens of other arms, and of one cap, are predicted. Nothing is said unless the predictions are near what
was measured, by the very modules that decide here.
"""

import hashlib
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import structlog

from bench.coserving import trace
from bench.coserving.simulated import SEATS, Cost, Engine, Replica, Rollout, Task, send
from bench.coserving.sums import DECIDES, ROLLOUT_TOKENS, TPOT, TTFT, Options, Row, Window, at_least, at_most, row
from bench.harness import report
from bench.harness.services import BenchError
from bench.plex.events import Events
from common.bus import delivery
from common.homes import queues, reading
from common.messages import ReplicaReport
from common.pools import Goals
from rollout_svc.coserving import figures, lender, lending, plan, step_time

MODULES = (plan, step_time, lending, lender, figures, reading, queues, delivery)
NEAR = 0.2
"""Maximum error of a prediction, relative to what was measured."""
POINTS, LOADS, ARMS = 6, {"30 %": 0.3, "70 %": 0.7}, ("slices", "cap-16", "ours")
"""Predictions that must be near, by the loads and arms that `arms` measures."""
PREDICTED_S = 60.0
OWN, LENDING, TASKS = 6, 8, 28
"""Engines for rollouts alone, those that serve (48 : 64 in the paper), and tasks."""


@dataclass(frozen=True)
class Point:
    """What an arm of one engine was measured to sample beside serving."""

    arm: str
    rate: float
    """Requests a second."""
    tokens_per_s: float
    """Of rollouts, measured."""


@dataclass(frozen=True)
class Case:
    """`arm`: `fixed`: lending engines only serve; `elastic`: time slices; `ours`."""

    arm: str
    tail: float = 7.0
    factor: float = 1.0
    """By which the step time model is wrong."""
    late_s: float = 0.0
    """Age of reports."""


TAILS = (5.0, 10.0)
CASES = [Case(arm, tail) for tail in TAILS for arm in ("fixed", "elastic", "ours")]
CASES += [Case("ours", factor=0.5), Case("ours", factor=1.5), Case("ours", late_s=10.0)]


def digest(modules: Sequence[ModuleType] = MODULES) -> str:
    """Of the functions that decide here and in a measured engine."""
    return hashlib.sha256(b"".join(Path(str(module.__file__)).read_bytes() for module in modules)).hexdigest()


def run(options: Options) -> dict[str, Any]:
    """Raises: BenchError if a prediction is not near what was measured by these modules."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    return simulated(report.read("coserving-arms"), options)


def simulated(arms: dict[str, Any], options: Options) -> dict[str, Any]:
    """The day on many engines, if `arms` has what one engine does. Raises: BenchError as `measured` and `predictions`."""
    cost, goals, rate, points = measured(arms)
    near = predictions(points, cost, goals, PREDICTED_S)
    rows = dict[Case, Row]()
    for case in CASES:
        window, more = many_engines(case, cost, goals, rate, options.day_s)
        rows[case] = {**asdict(case), **row(f"simulated {case.arm}", [window]), **more}
    about = {"simulation": True, "digest": digest(), "cost": asdict(cost), "points": near, "day_s": options.day_s}
    return about | {"rows": list(rows.values()), "checks": checks(rows)}


def measured(arms: dict[str, Any]) -> tuple[Cost, Goals, float, list[Point]]:
    """What `arms` measured: costs of steps, goals, requests a second that one engine attains alone, and points.

    Raises: BenchError if it did not run, or measured other modules.
    """
    if arms.get("digest") != digest():
        raise BenchError("`arms` measured other modules than these, or nothing: run `python -m bench.coserving arms` first")
    sampled = {(one["load"], one["arm"]): one["tokens_per_s"] for one in arms["rows"]}
    ttft_s, tpot_s, rate = arms["goals_ms"]["ttft"] / 1e3, arms["goals_ms"]["tpot"] / 1e3, arms["attained_per_s"]
    points = [Point(arm, share * rate, sampled[load, arm]) for load, share in LOADS.items() for arm in ARMS if (load, arm) in sampled]
    light = {one["arm"]: one for one in arms["rows"] if one["load"] == "30 %"}
    caps = {int(name.removeprefix("cap-")): one["tpot_p50"] / 1e3 for name, one in light.items() if name.startswith("cap-")}
    return Cost.of(ttft_s / TTFT, tpot_s / TPOT, sampled["30 %", "training"], caps), Goals(ttft_s, tpot_s), rate, points


def predictions(points: Sequence[Point], cost: Cost, goals: Goals, seconds: float, needed: int = POINTS) -> list[Row]:
    """Each point with what is simulated. Raises: BenchError if there are fewer than `needed`, or if one is not `NEAR`."""
    found = list[Row]()
    for number, point in enumerate(points):
        said = one_engine(point, cost, goals, seconds, number).rollout_tokens / seconds
        found.append({**asdict(point), "simulated": round(said), "error": round(said / point.tokens_per_s - 1, 3)})
    far = [f"{one['arm']} at {one['rate']:.1f}/s {one['error']:+.0%}" for one in found if abs(one["error"]) > NEAR]
    if far or len(found) < needed:
        raise BenchError(f"{len(found)} measured points of {needed}; not within {NEAR:.0%}: {', '.join(far) or 'none'}")
    return found


def one_engine(point: Point, cost: Cost, goals: Goals, seconds: float, seed: int) -> Window:
    """An engine whose `SEATS` are always wanted, beside requests at the point's rate."""
    clock, random = Events(), Random(seed)
    engine = Engine(clock, cost, DECIDES[point.arm], goals, seed)

    def refill() -> None:
        engine.waiting.append(Rollout("", random.randint(*ROLLOUT_TOKENS), refill))

    for _ in range(SEATS):
        refill()
    engine.wake()
    asked = send(clock, [engine], trace.arrivals(point.rate, seconds, seed))
    clock.run(seconds)
    return Window([one for one in asked if one.is_complete], goals, seconds, engine.tokens)


def many_engines(case: Case, cost: Cost, goals: Goals, rate: float, seconds: float) -> tuple[Window, dict[str, float]]:
    """A day on `OWN` engines for rollouts and `LENDING` that serve. `rate`: requests a second that one attains alone."""
    clock, reports = Events(), deque[list[ReplicaReport]]([[]])
    lends, decide = case.arm != "fixed", DECIDES["slices" if case.arm == "elastic" else "ours"]
    engines = [Engine(clock, cost, decide, goals, number, case.factor) for number in range(OWN + LENDING)]
    own = [Replica(str(number), engine, None) for number, engine in enumerate(engines[:OWN])]
    lent = [Replica(str(OWN + number), engine, lambda: reports[0]) for number, engine in enumerate(engines[OWN:]) if lends]
    replicas = [*own, *lent]
    tasks = [Task(str(number), replicas[number % len(replicas)], case.tail, number) for number in range(TASKS)]

    def each_second() -> None:
        reports.append([one.report for one in replicas])
        while len(reports) > 1 + case.late_s / lender.LOOK_S:
            reports.popleft()
        for one in replicas:
            one.look()
        clock.at(clock.now_s + lender.LOOK_S, each_second)

    def help_each_other() -> None:
        for one in replicas:
            one.help(replicas)
        clock.at(clock.now_s + queues.LOOK_S, help_each_other)

    for begin in (each_second, help_each_other, *(task.begin for task in tasks)):
        clock.at(0.0, begin)
    asked = send(clock, engines[OWN:], trace.arrivals(trace.MEAN_SHARE * rate * LENDING, seconds, 1, trace.day(seconds)))
    clock.run(seconds)
    grows = [[after > before for before, after in pairwise(one.sizes)] for one in replicas]
    turns = max(sum(now != last for last, now in pairwise(of_one)) for of_one in grows)
    steps_s = [took_s for task in tasks for took_s in task.steps_s]
    window = Window([one for one in asked if one.is_complete], goals, seconds, sum(one.tokens for one in engines), steps_s)
    at_home = 1 - sum(one.helped for one in replicas) / max(1, sum(one.begun for one in replicas))
    handed_back = sum(one.handed_back for one in replicas)
    return window, {"at_home": round(at_home, 3), "turns_per_min": round(60 * turns / seconds, 2), "handed_back": handed_back}


def checks(rows: dict[Case, Row]) -> list[Row]:
    found = list[Row]()
    for tail in TAILS:
        fixed, elastic, ours = (rows[Case(arm, tail)] for arm in ("fixed", "elastic", "ours"))
        found += [
            at_least(f"simulated, tail {tail:g}: tokens over fixed", ours["tokens_per_s"] / max(1, fixed["tokens_per_s"]), 1.3),
            at_least(f"simulated, tail {tail:g}: tokens over elastic", ours["tokens_per_s"] / max(1, elastic["tokens_per_s"]), 1.2),
            at_most(f"simulated, tail {tail:g}: time of a step over fixed", ours["step_p50_s"] / max(1e-3, fixed["step_p50_s"]), 1.0),
        ]
    named = {case: f"tail {case.tail:g}, T̂ × {case.factor:g}, reports {case.late_s:g} s late" for case in rows if case.arm == "ours"}
    return found + [at_least(f"simulated, {name}: attained", rows[case]["attained"], 0.99) for case, name in named.items()]
