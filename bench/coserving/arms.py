"""Ways to share an engine, in turn: goals met and rollout tokens, at three loads; rollouts without serving; what the product's class costs.

    alone      requests without rollouts: goals are multiples of its medians, and loads fractions of the rate whose goals it meets
    training   rollouts without requests, in a pool that does not serve · idle  the same where the pool has goals
    order      vLLM's default order · plain  vLLM's priorities · today  rollouts preempted for requests, but no goals
    slices     no rollout beside a request · cap-N  at most N · ours  as the product decides
    tight      ours, with a goal for the first token of 1.25 times p99 alone and a step

All arms of a round meet the same requests, in an order that turns by one with each round. A round counts if its own `alone` was quiet.
The class's cost is its processor time in each step without vLLM's own. The step time model's errors are those of its latest 256 steps.
"""

import asyncio
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from bench.coserving.engine import FCFS, PLAIN, SEATS, TODAY, WRONG, Arm, engines
from bench.coserving.load import NONE, STEP, Load, pace, rollout, rollouts, window
from bench.coserving.simulator import digest
from bench.coserving.sums import Options, Row, Window, at_least, at_most, attained, best_cap, quiet, row
from bench.harness import part
from bench.harness.report import percentile
from common.pools import Goals

OURS, SLICES = "ours", "slices"
BESIDE = (FCFS, PLAIN, TODAY, SLICES, "cap-8", "cap-16", "cap-32", OURS)
"""Arms with requests and rollouts, each with an engine of its own."""
OTHERS = {"training": PLAIN, "idle": OURS, "tight": OURS}
"""Further arms at the first load, with the engine of another."""
LOADS = {"30 %": (0.3, False, 0.9), "70 %": (0.7, False, 0.9), "bursts": (0.18, True, 1.0)}
"""Requests a second as a fraction of the rate that serving alone attains; whether they come in bursts; minimum of rollout tokens over the
best cap's."""
ATTAINED, FASTER, TIGHT = 0.99, 1.25, 1.25
SEARCH_S, LEARNS_S = 6.0, 20.0
"""Seconds of each rate that is tried; seconds after which a wrong step time model must be right again."""
WIDE = 512
Rounds = dict[str, dict[str, list[Window]]]
"""Windows by load and arm, one a round."""


def run(options: Options) -> dict[str, Any]:
    return asyncio.run(_run(options))


async def _run(options: Options) -> dict[str, Any]:
    names = (PLAIN, *(one for one in options.arms or BESIDE if one != PLAIN))
    async with engines(names, options.device) as arms:
        with part.phase("goals"):
            goals, slowest = await pace(arms[PLAIN], options.rounds)
            rate = 4 * slowest.rate if options.small else await attained_rate(arms[PLAIN], goals, slowest.rate, options)
            tight = await tight_goals(arms[PLAIN], goals, rate, options)
        with part.phase("measured"):
            rounds = await _rounds(arms, names, goals, tight, rate, options)
            again = await _after_wrong(arms[OURS], Load(0.3 * rate), goals, options)
    async with (
        engines((OURS,), options.device, sequences=SEATS if options.small else WIDE, kv_cache_gib=0.5) as arms,
        rollouts(arms[OURS], 2 * WIDE // STEP) as wide,
    ):
        class_s = _added_s(await window(arms[OURS], slowest, options.seconds, 0, goals, wide))
    counted = {load: quiet(of["alone"]) for load, of in rounds.items()}
    kept = {load: {name: [each[number] for number in counted[load]] for name, each in of.items()} for load, of in rounds.items()}
    rows = [{"load": load, **row(name, windows)} for load, of in kept.items() for name, windows in of.items()]
    return {
        "digest": digest(),
        "goals_ms": {"ttft": 1000 * goals.ttft_s, "tpot": 1000 * goals.tpot_s, "tight_ttft": 1000 * tight.ttft_s},
        "attained_per_s": round(rate, 2),
        "rounds": options.rounds,
        "seconds": options.seconds,
        "rounds_left_out": {load: options.rounds - len(numbers) for load, numbers in counted.items()},
        "rows": rows,
        "checks": [*checks(rows, goals), *_class_checks(kept[next(iter(LOADS))], again, class_s)],
        "alone_median_ms": {load: [min(1e6, round(1000 * one.median_s, 1)) for one in of["alone"]] for load, of in rounds.items()},
    }


async def attained_rate(arm: Arm, goals: Goals, rate: float, options: Options) -> float:
    """Highest rate from `rate` on, in steps of a quarter, whose goals serving alone meets; each has two attempts."""

    async def is_attained(wanted: float, seed: int) -> bool:
        return attained([await window(arm, Load(wanted), min(SEARCH_S, options.seconds), seed, goals)]) >= ATTAINED

    while await is_attained(FASTER * rate, 1) or await is_attained(FASTER * rate, 2):
        rate *= FASTER
    return rate


async def tight_goals(arm: Arm, goals: Goals, rate: float, options: Options) -> Goals:
    """`TIGHT` times p99 of the first token alone, and a step with all rollouts, which a request may find under way."""
    alone = await window(arm, Load(0.3 * rate), 2 * options.seconds, 3, goals)
    async with rollouts(arm) as beside:
        training = await window(arm, NONE, 2.0, 0, goals, beside)
    step_s = SEATS * training.seconds / max(1, training.rollout_tokens)
    return Goals(TIGHT * percentile([one.first_s or 0.0 for one in alone.asked], 0.99) + step_s, goals.tpot_s)


async def _rounds(arms: Mapping[str, Arm], names: Sequence[str], goals: Goals, tight: Goals, rate: float, options: Options) -> Rounds:
    found: Rounds = {load: {} for load in LOADS}
    for number in range(options.rounds):
        for place, (load, (share, has_bursts, _)) in enumerate(LOADS.items()):
            many = [*names, *(() if place else OTHERS)]
            turn, seed, asking = number % len(many), 100 * number + place, Load(share * rate, has_bursts)
            found[load].setdefault("alone", []).append(await window(arms[PLAIN], asking, options.seconds, seed, goals))
            for name in (*many[turn:], *many[:turn]):
                arm = arms[OTHERS.get(name, name)]
                of, aims = NONE if name in ("training", "idle") else asking, tight if name == "tight" else goals
                async with rollouts(arm) as beside:
                    found[load].setdefault(name, []).append(await window(arm, of, options.seconds, seed, aims, beside))
    return found


async def _after_wrong(arm: Arm, load: Load, goals: Goals, options: Options) -> Window:
    """Beside requests and rollouts, after the step time model was made wrong."""
    async with rollouts(arm) as beside:
        await arm.engine.sample(rollout(0, None, WRONG))
        return await window(arm, load, 2.0 if options.small else LEARNS_S, 0, goals, beside)


def checks(rows: Sequence[Row], goals: Goals) -> list[Row]:
    """What must be shown of the rows."""
    nothing = {"attained": 1.0, "ttft_p99": 0.0, "tpot_p99": 0.0}  # a short window may have no request
    of, found = {(one["load"], one["arm"]): nothing | one for one in rows}, list[Row]()
    for load, (*_, share) in LOADS.items():
        ours, best = of[load, OURS], best_cap([one for one in of.values() if one["load"] == load], ATTAINED)
        found += [
            at_least(f"{load}: ours attains", ours["attained"], ATTAINED),
            at_most(f"{load}: ours, p99 of first tokens over the goal", ours["ttft_p99"] / 1000 / goals.ttft_s, 1.0),
            at_most(f"{load}: ours, p99 of further tokens over the goal", ours["tpot_p99"] / 1000 / goals.tpot_s, 1.0),
        ]
        if fcfs := of.get((load, FCFS)):
            found.append(at_most(f"{load}: vLLM's order attains", fcfs["attained"], 0.5))
        if slices := of.get((load, SLICES)):
            found.append(at_least(f"{load}: rollout tokens over time slices", ours["tokens_per_s"] / max(1, slices["tokens_per_s"]), 1.2))
        found += [at_least(f"{load}: rollout tokens over the best cap that attains", ours["tokens_per_s"] / best, share)] if best else []
    first = next(iter(LOADS))
    return [
        *found,
        at_least("tight goal: attained", of[first, "tight"]["attained"], 0.98),
        at_least(
            "goals without serving, over training alone",
            of[first, "idle"]["tokens_per_s"] / max(1, of[first, "training"]["tokens_per_s"]),
            0.97,
        ),
    ]


def _class_checks(of: Mapping[str, Sequence[Window]], again: Window, wide_s: float) -> list[Row]:
    """Cost of the class, and errors of its model. `wide_s`: what it adds to a step with `WIDE` sequences."""
    step_s = median(one.seconds / max(1, one.grown["idle_steps"]) for one in of["idle"])
    added_s = median(map(_added_s, of[OURS]))
    errors = [[one.figures[name] for one in of[OURS]] for name in ("median_error", "p95_error")]
    return [
        at_most(f"class, share of a step with {SEATS}", added_s / max(1e-9, step_s), 0.02),
        at_most(f"class, ms of a step with {WIDE}", 1000 * wide_s, 1.0),
        at_most("step time model, median error", median(errors[0]), 0.1),
        at_most("step time model, p95 error", median(errors[1]), 0.3),
        at_most(f"step time model, median error {LEARNS_S:g} s after it was wrong", again.figures["median_error"], 0.1),
        at_most(f"step time model, p95 error {LEARNS_S:g} s after it was wrong", again.figures["p95_error"], 0.3),
    ]


def _added_s(of: Window) -> float:
    """What the class adds to a step beside requests, on average."""
    return of.grown["busy_added_s"] / max(1, of.grown["busy_steps"])
