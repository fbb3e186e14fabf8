"""Soak test of memory: a stack under constant work, and a straight line through samples of its memory.

python -m bench.soak [--minutes 30]     prints JSON

Four tasks are alive at any time; where one has finished another begins, so the number of tasks that the services have
seen grows, and any state kept per task would show. The first third is warm-up: caches and adapter slots fill.
"""

import argparse
import asyncio
import json
import time
import tomllib

import numpy as np
from pydantic import JsonValue

from bench.harness.keys import operator
from bench.harness.report import ROOT, machine
from bench.harness.services import local_stack
from bench.stack import memory_mib
from marlaas.stack.state_files import Stack

SAMPLE_S = 5.0
TASKS = 4
STEPS = 20
"""Steps of each task: few, so that many tasks begin and end."""
WARM_UP_SHARE = 1 / 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    minutes = parser.parse_args().minutes
    with local_stack() as stack:
        result = asyncio.run(soaked(stack, minutes * 60))
    print(json.dumps({"machine": machine(), "minutes": minutes} | result, indent=2))


async def soaked(stack: Stack, duration_s: float) -> dict[str, object]:
    """Keep `TASKS` tasks alive for that time; returns each component's memory."""
    times: list[float] = []
    samples: list[dict[str, int]] = []
    finished = 0
    started = time.monotonic()

    async def work(number: int) -> None:
        nonlocal finished
        async with operator(stack) as client:
            while True:
                task = await client.submit(_spec(number, finished))
                async for _ in client.watch(task):
                    pass
                finished += 1

    workers = [asyncio.create_task(work(number)) for number in range(TASKS)]
    try:
        while (passed_s := time.monotonic() - started) < duration_s:
            samples.append(await asyncio.to_thread(memory_mib, stack))
            times.append(passed_s)
            await asyncio.sleep(SAMPLE_S)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    kept = [place for place, passed_s in enumerate(times) if passed_s >= duration_s * WARM_UP_SHARE]
    hours_N = np.array([times[place] for place in kept]) / 3600
    return {
        "tasks_finished": finished,
        "samples": len(kept),
        "memory_mib": {name: _line(hours_N, np.array([samples[place][name] for place in kept])) for name in samples[-1]},
    }


def _line(hours_N: np.ndarray, mib_N: np.ndarray) -> dict[str, float]:
    """Least squares. Shapes: both (N,). `growth` is the line's rise over the samples, `noise` the residual."""
    slope, start = np.polyfit(hours_N, mib_N, 1)
    return {
        "first": float(mib_N[0]),
        "last": float(mib_N[-1]),
        "most": float(mib_N.max()),
        "slope_mib_per_hour": round(float(slope), 1),
        "growth": round(float(slope * (hours_N[-1] - hours_N[0])), 1),
        "noise": round(float(np.std(mib_N - (slope * hours_N + start))), 1),
    }


def _spec(number: int, round_: int) -> dict[str, JsonValue]:
    examples = sorted((ROOT / "examples").glob("*.toml"))
    raw = tomllib.loads(examples[number % len(examples)].read_text())
    return {**raw, "name": f"soak-{number}-{round_}", "tenant": f"tenant-{number}", "steps": STEPS}


if __name__ == "__main__":
    main()
