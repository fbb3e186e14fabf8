"""The same rollouts alone and beside requests, with a full cache and more adapters than slots: held, preempted and resumed, each has the
same tokens, and the same log-probabilities.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench.coserving.engine import FULL, ArmEngine, arm_engines
from bench.coserving.load import pace, requests, rollout
from bench.coserving.sums import Options, at_least, at_most
from rollout_svc.engine.engine import Sampled, SampleRequest

ROLLOUTS, FEW = 1_000, 30
SLICE_S = 5.0
"""Seconds of one open loop of requests; one follows another until all rollouts have ended."""


def run(options: Options) -> dict[str, Any]:
    return asyncio.run(_run(options))


async def _run(options: Options) -> dict[str, Any]:
    async with arm_engines(("ours",), options.device, **FULL) as engines:
        arm = engines["ours"]
        goals, load = await pace(arm)
        wanted = [rollout(number, arm.adapters[1 + number % arm.tasks]) for number in range(FEW if options.small else ROLLOUTS)]
        alone, alone_s = await _sampled(arm, wanted)
        before, work, asked = (
            arm.figures(),
            asyncio.create_task(_sampled(arm, [replace(one, request_id=f"again-{one.request_id}") for one in wanted])),
            0,
        )
        while not work.done():
            asked += len(await requests(arm, load, SLICE_S, asked, goals))
        beside, beside_s = await work
        after = arm.figures()
    pairs = list(zip(alone, beside, strict=True))
    same = sum(one.ids == other.ids for one, other in pairs)
    differences = [abs(one - other) for first, second in pairs for one, other in zip(first.logprobs, second.logprobs, strict=False)]
    figures = {
        name: round(after[name] - before[name]) for name in ("withheld_steps", "rollout_steps", "preempted", "recomputed_tokens", "faults")
    }
    row = {"rollouts": len(pairs), "same_tokens": same, "requests": asked, "alone_s": round(alone_s, 1), "beside_s": round(beside_s, 1)}
    return {
        "rows": [row | {"max_difference": max(differences)} | figures],
        "checks": [
            at_least("share of rollouts with the same tokens", same / len(pairs), 1.0),
            at_most("maximum difference of log-probabilities, in 1e-5", 1e5 * max(differences), 1.0),
        ],
    }


async def _sampled(arm: ArmEngine, wanted: Sequence[SampleRequest]) -> tuple[list[Sampled], float]:
    """All of them concurrently, and the seconds that they took."""
    began_s = time.monotonic()
    found = await asyncio.gather(*(arm.engine.sample(one) for one in wanted))
    return found, time.monotonic() - began_s
