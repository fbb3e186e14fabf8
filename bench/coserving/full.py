"""A full KV cache, and rollouts of twice as many adapters as there are slots; each step of a task has a new version, which is loaded.

`alone` and `training` are of the product's engine. Recomputed tokens are those whose KV cache rollouts lost; preemptions after a cut are
those while it holds. A round counts if its own `alone` was quiet. Then a thousand rollouts are sampled alone and beside requests: held,
preempted and resumed, each must have the same tokens and log-probabilities.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench.coserving.engine import FULL, TODAY, Arm, engines
from bench.coserving.load import NONE, Load, pace, requests, rollout, rollouts, window
from bench.coserving.sums import Options, Row, Window, at_least, at_most, attained, quiet, row
from common.pools import Goals
from rollout_svc.engine.engine import Sampled, SampleRequest

ARMS = {"training": "ours", TODAY: TODAY, "ours": "ours"}
COUNTED = ("preempted", "recomputed_tokens", "cuts", "preempted_after_cut", "faults")
ROLLOUTS, FEW = 1_000, 12
ASKED_S = 5.0
"""Seconds of one open loop of requests; one follows another until all rollouts have ended."""


def run(options: Options) -> dict[str, Any]:
    return asyncio.run(_run(options))


async def _run(options: Options) -> dict[str, Any]:
    found: dict[str, list[Window]] = {name: [] for name in ("alone", *ARMS)}
    async with engines((TODAY, "ours"), options.device, **FULL) as arms:
        goals, load = await pace(arms["ours"], options.rounds)
        versions: dict[str, Counter[int]] = {name: Counter() for name in arms}
        for number in range(options.rounds):
            found["alone"].append(await window(arms["ours"], load, options.seconds, number, goals))
            for name, of in ARMS.items():

                async def following(task: int, arm: Arm = arms[of], steps: Counter[int] = versions[of]) -> str:
                    """Load the task's next version, and unload the one before it."""
                    before = f"task-{task}" + (f"-{steps[task]}" if steps[task] else "")
                    after = f"task-{task}-{steps[task] + 1}"
                    await arm.load(after, 1 + task)
                    steps[task] += 1
                    await arm.engine.unload(before)
                    return after

                async with rollouts(arms[of], adapter_of=following) as beside:
                    asking = NONE if name == "training" else load
                    found[name].append(await window(arms[of], asking, options.seconds, number, goals, beside))
        same = await _same(arms["ours"], load, goals, FEW if options.small else ROLLOUTS)
    counted = quiet(found["alone"])
    rows = [_row(name, [windows[number] for number in counted]) for name, windows in found.items()]
    ours = rows[-1]
    return {
        "rounds": options.rounds,
        "seconds": options.seconds,
        "rounds_left_out": options.rounds - len(counted),
        "rows": [*rows, same],
        "checks": [
            at_least("full cache: ours attains", attained([found["ours"][number] for number in counted]), 0.99),
            at_most("full cache: share of tokens recomputed", ours["recomputed_share"], 0.05),
            at_most("full cache: preemptions between cut and thaw", ours["preempted_after_cut"], 0),
            at_least("rollouts beside serving with the same tokens", same["same_tokens"] / same["rollouts"], 1.0),
            at_most("maximum difference of their log-probabilities", same["max_difference"], 1e-5),
        ],
    }


def _row(name: str, windows: list[Window]) -> Row:
    if not windows[0].grown:  # the product's class without goals counts nothing
        return row(name, windows)
    counts = {what: round(sum(one.grown.get(what, 0.0) for one in windows)) for what in COUNTED}
    sampled = max(1, sum(one.rollout_tokens for one in windows))
    return row(name, windows) | counts | {"recomputed_share": round(counts["recomputed_tokens"] / sampled, 4)}


async def _same(arm: Arm, load: Load, goals: Goals, count: int) -> Row:
    """Differences of rollouts sampled beside requests from the same ones sampled alone."""
    wanted = [rollout(number, f"base-{number % arm.tasks}") for number in range(count)]
    for task in range(arm.tasks):
        await arm.load(f"base-{task}", 1 + task)
    alone, alone_s = await _sampled(arm, wanted)
    before, asked = arm.figures(), 0
    work = asyncio.create_task(_sampled(arm, [replace(one, request_id=f"again-{one.request_id}") for one in wanted]))
    while not work.done():
        asked += len(await requests(arm, load, ASKED_S, asked, goals))
    beside, beside_s = await work
    pairs = list(zip(alone, beside, strict=True))
    differences = [abs(one - other) for first, second in pairs for one, other in zip(first.logprobs, second.logprobs, strict=False)]
    return {
        "arm": "the same rollouts",
        "requests": asked,
        "rollouts": count,
        "same_tokens": sum(one.ids == other.ids for one, other in pairs),
        "max_difference": max(differences),
        "alone_s": round(alone_s, 1),
        "beside_s": round(beside_s, 1),
        **{name: round(arm.figures()[name] - before[name]) for name in ("withheld_steps", *COUNTED)},
    }


async def _sampled(arm: Arm, wanted: Sequence[SampleRequest]) -> tuple[list[Sampled], float]:
    """All of them concurrently, and the seconds that they took."""
    began_s = time.monotonic()
    return await asyncio.gather(*(arm.engine.sample(one) for one in wanted)), time.monotonic() - began_s
