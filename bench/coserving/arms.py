"""Ways to share an engine, in turn: goals met and rollout tokens, at three loads; and rollouts without serving.

    alone      requests without rollouts: goals are multiples of its medians, and loads fractions of the rate whose goals it meets
    training   rollouts without requests, in a pool that does not serve · idle-goals  the same where the pool has goals
    order      vLLM's default order · plain  vLLM's priorities · today  rollouts preempted for requests, but no goals
    slices     no rollout beside a request · cap-N  at most N · ours  as the product decides
    tight      ours, with a goal for the first token of 1.25 times p99 alone and a step

All arms of a round meet the same requests, in an order that turns by one with each round. A round counts if its own `alone` was quiet.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from bench.coserving.engine import FCFS, PLAIN, TODAY, ArmEngine, arm_engines
from bench.coserving.load import BATCHES, Load, measured, pace, rollouts
from bench.coserving.simulator import digest
from bench.coserving.sums import Options, Row, Window, at_least, at_most, attained, best_cap, mean_s, quiet, row
from bench.harness import part
from bench.harness.report import percentile
from common.pools import Goals

BESIDE = (FCFS, PLAIN, TODAY, "slices", "cap-8", "cap-16", "cap-32", "ours")
"""Arms with requests and rollouts, each with an engine of its own."""
SMALL = (FCFS, PLAIN, "slices", "ours")
ENGINES = {"alone": PLAIN, "training": PLAIN, "idle-goals": "ours", "tight": "ours"}
"""Arms that use the engine of another."""
LOADS = {"30 %": (0.3, False), "70 %": (0.7, False), "bursts": (0.18, True)}
"""Requests a second as a fraction of the rate that serving alone attains."""
TIGHT = 1.25
ATTAINED = 0.99
FASTER = 1.25
CALIBRATED_S = 6.0
Rounds = dict[str, dict[str, list[Window]]]
"""Windows by load and arm, one a round."""


def run(options: Options) -> dict[str, Any]:
    return asyncio.run(_run(options))


async def _run(options: Options) -> dict[str, Any]:
    names = SMALL if options.small else BESIDE
    async with arm_engines(names, options.device) as engines:
        alone = engines[PLAIN]
        with part.phase("goals"):
            goals, slowest = await pace(alone, 1 if options.small else BATCHES)
            rate = await attained_rate(alone, goals, slowest.rate, options)
            tight = await tight_goals(alone, goals, rate, options)
        with part.phase("measured"):
            rounds = await _rounds(engines, names, goals, tight, rate, options)
    counted = {load: quiet([mean_s(one) for one in arms["alone"]]) or [0] for load, arms in rounds.items()}
    rows = [
        {"load": load, **row(name, [windows[number] for number in counted[load]])}
        for load, arms in rounds.items()
        for name, windows in arms.items()
    ]
    return {
        "digest": digest(),
        "goals_ms": {"ttft": 1000 * goals.ttft_s, "tpot": 1000 * goals.tpot_s, "tight_ttft": 1000 * tight.ttft_s},
        "attained_per_s": round(rate, 2),
        "rounds": options.rounds,
        "seconds": options.seconds,
        "rounds_left_out": {load: options.rounds - len(numbers) for load, numbers in counted.items()},
        "rows": rows,
        "checks": checks(rows, goals),
        "by_round": {load: {name: [_short(one) for one in windows] for name, windows in arms.items()} for load, arms in rounds.items()},
    }


async def attained_rate(arm: ArmEngine, goals: Goals, rate: float, options: Options) -> float:
    """Highest rate from `rate` on, in steps of a quarter, whose goals serving alone meets; each rate has two attempts."""
    seconds = min(CALIBRATED_S, options.seconds)

    async def is_met(wanted: float) -> bool:
        return any([attained([await measured(arm, Load(wanted), seconds, seed, goals, trains=False)]) >= ATTAINED for seed in (1, 2)])

    while await is_met(FASTER * rate):
        rate *= FASTER
    return rate


async def tight_goals(arm: ArmEngine, goals: Goals, rate: float, options: Options) -> Goals:
    """`TIGHT` times p99 of the first token alone, and a step with all rollouts, which a request may find under way."""
    alone = await measured(arm, Load(rate * LOADS["30 %"][0]), 2 * options.seconds, 3, goals, trains=False)
    async with rollouts(arm) as beside:
        before = beside.tokens()
        await asyncio.sleep(1.0)
        step_s = arm.engine.settings.sequences / max(1, beside.tokens() - before)
    return Goals(TIGHT * percentile([one.first_s or 0.0 for one in alone.asked], 0.99) + step_s, goals.tpot_s)


async def _rounds(
    engines: Mapping[str, ArmEngine], names: tuple[str, ...], goals: Goals, tight: Goals, rate: float, options: Options
) -> Rounds:
    found: Rounds = {load: {} for load in LOADS}
    for number in range(options.rounds):
        for place, (load, (share, has_bursts)) in enumerate(LOADS.items()):
            arms = [*names, *(("training", "idle-goals", "tight") if place == 0 else ())]
            turn = number % len(arms)
            for name in ("alone", *arms[turn:], *arms[:turn]):
                of = None if name in ("training", "idle-goals") else Load(rate * share, has_bursts)
                aims, trains = tight if name == "tight" else goals, name != "alone"
                window = await measured(engines[ENGINES.get(name, name)], of, options.seconds, 100 * number + place, aims, trains=trains)
                found[load].setdefault(name, []).append(window)
    return found


def checks(rows: list[Row], goals: Goals) -> list[Row]:
    """What must be shown of the rows."""
    of = {(one["load"], one["arm"]): one for one in rows}
    found: list[Row] = []
    for load, share in zip(LOADS, (0.9, 0.9, 1.0), strict=True):
        ours, best = of[load, "ours"], best_cap([one for one in rows if one["load"] == load])
        found += [
            at_least(f"{load}: ours attains", ours["attained"], ATTAINED),
            at_most(f"{load}: ours, p99 of first tokens over the goal", ours["ttft_p99"] / 1000 / goals.ttft_s, 1.0),
            at_most(f"{load}: ours, p99 of further tokens over the goal", ours["tpot_p99"] / 1000 / goals.tpot_s, 1.0),
            at_most(f"{load}: vLLM's order attains", of[load, FCFS]["attained"], 0.5),
            at_least(f"{load}: rollout tokens over time slices", ours["tokens_per_s"] / max(1, of[load, "slices"]["tokens_per_s"]), 1.2),
        ]
        found += [at_least(f"{load}: rollout tokens over the best cap that attains", ours["tokens_per_s"] / best, share)] if best else []
    training, idle = (of[next(iter(LOADS)), name]["tokens_per_s"] for name in ("training", "idle-goals"))
    tight = of[next(iter(LOADS)), "tight"]["attained"]
    return [
        *found,
        at_least("tight goal attained", tight, 0.98),
        at_least("goals without serving over training", idle / max(1, training), 0.97),
    ]


def _short(window: Window) -> Row:
    """A round's figures, whether it counts or not."""
    of = row("", [window])
    kept = ("requests", "attained", "ttft_p99", "tpot_p99", "tokens_per_s")
    return {name: of[name] for name in kept if name in of} | {"mean_ms": round(1000 * mean_s(window), 1) if window.asked else None}
