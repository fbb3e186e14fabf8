"""Reinforcement learning of a tool's use: reward, calls and final answers of the calculator task, step by step.

python -m bench.calculator [--seeds 0 1 2] [--steps N] [--plot FILE.png]     prints JSON; runs on a stack of its own
"""

import argparse
import asyncio
import json
from pathlib import Path
from statistics import fmean

from bench.harness.keys import operator
from bench.harness.report import ROOT, machine
from bench.harness.services import local_stack
from common.spec import TaskSpec
from marlaas.reporting import plots
from marlaas.reporting.progress import EDGE_STEPS, Progress
from marlaas.stack.state_files import Stack
from marlaas.task_file import read_task

TASK = ROOT / "examples" / "environments" / "calculator.toml"
CURVES = {"reward.tool_calls": "calls answered, per episode", "reward.well_formed": "share of calls well formed"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="one task each, trained together")
    parser.add_argument("--steps", type=int, help="default: as the task file says")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    changes = {} if options.steps is None else {"steps": options.steps}
    task = read_task(TASK)
    specs = [task.model_copy(update=changes | {"seed": seed, "name": f"{task.name}-{seed}"}) for seed in options.seeds]
    with local_stack() as stack:
        tasks = asyncio.run(trained(stack, specs))
    if options.plot is not None:
        plots.draw_metrics(tasks, CURVES, options.plot)
    print(json.dumps({"machine": machine(), "tasks": {one.spec.name: summary(one) for one in tasks}}, indent=2))


async def trained(stack: Stack, specs: list[TaskSpec]) -> list[Progress]:
    """Progress of each task; all train at once."""
    async with operator(stack) as client:
        found = {(task := await client.submit(spec)): Progress(task, spec) for spec in specs}
        async for event in client.watch(*found):
            found[event.task].apply(event)
    return list(found.values())


def summary(one: Progress) -> dict[str, object]:
    """Means of the first and the last steps: [before, after]."""
    curves = {"reward": one.rewards} | {name: [step.metrics[name] for step in one.steps if name in step.metrics] for name in CURVES}
    edges: dict[str, object] = {
        name: [round(fmean(curve[:EDGE_STEPS]), 3), round(fmean(curve[-EDGE_STEPS:]), 3)] for name, curve in curves.items() if curve
    }
    return {"state": one.state, "steps": len(one.steps)} | ({"reason": one.reason} if one.reason else {}) | edges


if __name__ == "__main__":
    main()
