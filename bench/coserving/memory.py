"""A full KV cache, and rollouts of twice as many adapters as there are slots; each step of a task has a new version, which is loaded.

`alone` and `training` are of the product's engine. Recomputed tokens are those whose KV cache rollouts lost; preemptions after a cut are
those while it holds. A round counts if its own `alone` was quiet.
"""

import asyncio
from collections import Counter
from typing import Any

from bench.coserving.engine import FULL, TODAY, ArmEngine, arm_engines
from bench.coserving.load import Load, measured, pace, rollouts, window
from bench.coserving.sums import Options, Row, Window, at_least, at_most, mean_s, quiet, row

ARMS = {"training": "ours", TODAY: TODAY, "ours": "ours"}
MAX_ROUNDS = 3
COUNTED = ("preempted", "recomputed_tokens", "cuts", "preempted_after_cut")


class Versions:
    """Versions of each task in an engine: the newest one is loaded."""

    def __init__(self, arm: ArmEngine) -> None:
        self._arm = arm
        self._steps: Counter[int] = Counter()

    async def following(self, task: int) -> str:
        """Load the task's next version, and unload the one before it."""
        number = self._steps[task]
        before, after = f"task-{task}" + (f"-{number}" if number else ""), f"task-{task}-{number + 1}"
        await self._arm.load(after, 1 + task)
        self._steps[task] += 1
        await self._arm.engine.unload(before)
        return after


def run(options: Options) -> dict[str, Any]:
    return asyncio.run(_run(options))


async def _run(options: Options) -> dict[str, Any]:
    found: dict[str, list[Window]] = {name: [] for name in ("alone", *ARMS)}
    async with arm_engines((TODAY, "ours"), options.device, **FULL) as engines:
        goals, load = await pace(engines["ours"])
        versions = {name: Versions(arm) for name, arm in engines.items()}
        for number in range(min(MAX_ROUNDS, options.rounds)):
            found["alone"].append(await measured(engines["ours"], load, options.seconds, number, goals, trains=False))
            for name, engine in ARMS.items():
                of: Load | None = None if name == "training" else load
                async with rollouts(engines[engine], adapter_of=versions[engine].following) as beside:
                    found[name].append(await window(engines[engine], of, options.seconds, number, goals, beside))
    counted = quiet([mean_s(one) for one in found["alone"]]) or [0]
    rows = [_row(name, [windows[number] for number in counted]) for name, windows in found.items()]
    ours = next(one for one in rows if one["arm"] == "ours")
    checks = [
        at_least("full cache: ours attains", ours["attained"], 0.99),
        at_most("full cache: share of tokens recomputed", ours["recomputed_share"], 0.05),
        at_most("full cache: preemptions between cut and thaw", ours["preempted_after_cut"], 0),
    ]
    left_out = options.rounds - len(counted)
    return {"rounds": options.rounds, "seconds": options.seconds, "rounds_left_out": left_out, "rows": rows, "checks": checks}


def _row(name: str, windows: list[Window]) -> Row:
    counts = {what: round(sum(window.figures.get(what, 0.0) for window in windows)) for what in COUNTED}
    sampled = sum(window.rollout_tokens for window in windows)
    return row(name, windows) | counts | {"recomputed_share": round(counts["recomputed_tokens"] / max(1, sampled), 4)}
