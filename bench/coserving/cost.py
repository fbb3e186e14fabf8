"""What the scheduler class costs, and the error of its step time model.

The class's processor time in each step, without vLLM's own, beside requests: with 64 sequences as a share of a step with all of them,
with 512 in milliseconds. The model's errors are those of its latest 256 steps beside requests, and again 20 s after it was made wrong by
half. A round counts if its own `alone` was quiet.
"""

import asyncio
from statistics import median
from typing import Any

from bench.coserving.engine import SEATS, WRONG, ArmEngine, arm_engines
from bench.coserving.load import STEP, Load, Rollouts, measured, pace, rollout, rollouts, window
from bench.coserving.sums import Options, Row, Window, at_most, mean_s, quiet
from common.pools import Goals

WIDE = 512
LEARNS_S = 20.0
"""Seconds after which the model must be right again."""
MAX_ROUNDS = 3


def run(options: Options) -> dict[str, Any]:
    return asyncio.run(_run(options))


async def _run(options: Options) -> dict[str, Any]:
    found = {seats: await _rounds(seats, options) for seats in ((SEATS,) if options.small else (SEATS, WIDE))}
    errors = {name: median(row[name] for row in found[SEATS]) for name in ("median_error", "p95_error", "median_again", "p95_again")}
    checks = [
        at_most("class, share of a step with 64", median(row["class_share"] for row in found[SEATS]), 0.02),
        at_most("class, ms of a step with 512", median(row["class_ms"] for row in found[max(found)]), 1.0),
        *(at_most(f"step time model, {name}", value, 0.1 if name.startswith("median") else 0.3) for name, value in errors.items()),
    ]
    rows = [row for each in found.values() for row in each]
    return {"rounds": options.rounds, "seconds": options.seconds, "rows": rows, "checks": checks}


async def _rounds(seats: int, options: Options) -> list[Row]:
    """A row for each round that counts."""
    alone: list[Window] = []
    rows: list[Row] = []
    async with arm_engines(("ours",), options.device, sequences=seats) as engines:
        arm = engines["ours"]
        goals, load = await pace(arm)
        for number in range(min(MAX_ROUNDS, options.rounds)):
            alone.append(await measured(arm, load, options.seconds, number, goals, trains=False))
            async with rollouts(arm, 9 * seats // (4 * STEP)) as beside:
                training = await window(arm, None, options.seconds, number, goals, beside)
                serving = await window(arm, load, options.seconds, number, goals, beside)
                rows.append({"sequences": seats, "round": number, **_costs(training, serving)})
                if seats == SEATS:
                    rows[-1] |= await _after_wrong(arm, load, goals, beside, 2.0 if options.small else LEARNS_S)
    return [rows[number] for number in quiet([mean_s(one) for one in alone]) or [0]]


def _costs(training: Window, serving: Window) -> Row:
    """Of a round: without requests all sequences are in each step, and beside requests the class plans."""
    idle, busy = training.figures, serving.figures
    step_s, added_s = idle["took_s"] / max(1, idle["engine_steps"]), busy["added_s"] / max(1, busy["engine_steps"])
    return {
        "step_ms": round(1000 * step_s, 2),
        "class_ms": round(1000 * added_s, 3),
        "class_share": round(added_s / max(1e-9, step_s), 4),
        "class_share_without_requests": round(idle["added_s"] / max(1e-9, idle["took_s"]), 4),
        "held_share": round(busy["withheld_steps"] / max(1.0, busy["rollout_steps"]), 3),
        **{name: round(busy[name], 3) for name in ("median_error", "p95_error", "margin")},
    }


async def _after_wrong(arm: ArmEngine, load: Load, goals: Goals, beside: Rollouts, seconds: float) -> Row:
    """The model's errors after it was made wrong: in the first second, and at the end."""
    await arm.engine.sample(rollout(0, None, WRONG))
    wrong = await window(arm, load, 1.0, 1, goals, beside)
    again = await window(arm, load, seconds, 2, goals, beside)
    return {
        "median_wrong": round(wrong.figures["median_error"], 3),
        "median_again": round(again.figures["median_error"], 3),
        "p95_again": round(again.figures["p95_error"], 3),
    }
