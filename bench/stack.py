"""One-machine stack with tasks that start together: seconds until it is ready and to first steps, rewards, gains and memory. Prints JSON.

    python -m bench.stack [--steps N]                    the three example tasks
    python -m bench.stack --task FILE --seeds 0,1,2      a task file beside its pools.toml, each seed a task of another tenant, evaluated
                                                         before and after on its protocol of held-out prompts

`recipe` stands for recipes/format-135m where its base model is there (its README), else for examples/compose, whose model is in the tree.
"""

import argparse
import asyncio
import json
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.harness import part
from bench.harness.keys import operator
from bench.harness.measures import usage
from bench.harness.report import ROOT, machine
from bench.harness.services import BenchError, local_stack, run_or_exit
from bench.learning.arms import EXAMPLE, HELD_OUT
from bench.learning.intervals import over_seeds_and_prompts
from common.spec import TaskSpec
from common.task_states import ENDED
from marlaas.reporting.progress import Progress
from marlaas.stack.state_files import Stack
from marlaas.task_file import read_task

SAMPLE_S = 2.0
FORMAT = ROOT / "recipes" / "format-135m"
RECIPE = FORMAT / "task.toml" if (FORMAT / "base").exists() else EXAMPLE / "compose.toml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", type=lambda text: RECIPE if text == "recipe" else Path(text), help="default: the three examples")
    parser.add_argument("--seeds", type=lambda text: [int(one) for one in text.split(",")], default=[0], help="with --task")
    parser.add_argument("--steps", type=int, default=10, help="of each task")
    parser.add_argument("--groups", type=int, help="of a step, with --task")
    options = parser.parse_args()
    if options.task:
        pools, specs = options.task.with_name("pools.toml"), [seeded(read_task(options.task), seed, options) for seed in options.seeds]
    else:
        pools, examples = ROOT / "pools.toml", sorted((ROOT / "examples").glob("*.toml"))
        specs = [read_task(path).model_copy(update={"steps": options.steps}) for path in examples]
    started = time.monotonic()
    with local_stack(pools) as stack:
        supervisor = psutil.Process(stack.supervisor.pid)
        result = {
            "task": str(options.task or "examples").removeprefix(f"{ROOT}/"),
            "ready_s": round(time.monotonic() - started, 1),
            "ready_processor_s": round(sum(usage.cpu_s(one) for one in usage.family(supervisor)), 1),
            "idle_mib": memory_mib(stack),
        }
        part.keep(result)
        result |= asyncio.run(trained(stack, specs))
    part.keep(result)
    print(json.dumps({"machine": machine()} | result, indent=2))


def seeded(spec: TaskSpec, seed: int, options: argparse.Namespace) -> TaskSpec:
    """The task with another seed, evaluated before its first step, halfway and after its last by the held-out protocol alone."""
    protocols = tuple(one for one in spec.evaluation.protocol if one.name == HELD_OUT)
    algorithm = spec.algorithm.model_copy(update={"groups_per_step": options.groups or spec.algorithm.groups_per_step})
    evaluation = spec.evaluation.model_copy(update={"every": max(1, options.steps // 2), "protocol": protocols})
    own = {"name": f"seed-{seed}", "tenant": f"tenant-{seed}", "seed": seed, "steps": options.steps}
    return spec.model_copy(update={**own, "algorithm": algorithm, "evaluation": evaluation})


async def trained(stack: Stack, specs: Sequence[TaskSpec]) -> dict[str, Any]:
    """Train the tasks together, in a part of `bench.gpu` for as long as it has time. Raises: BenchError when one fails."""
    peak: dict[str, int] = {}
    async with operator(stack) as client:
        submitted_s = time.time()
        tasks = {task: Progress(task, spec) for spec in specs for task in [await client.submit(spec)]}

        async def sample() -> None:
            while True:
                for name, mib in memory_mib(stack).items():
                    peak[name] = max(mib, peak.get(name, 0))
                await asyncio.sleep(SAMPLE_S)

        sampling = asyncio.create_task(sample())
        with suppress(TimeoutError):
            async with asyncio.timeout(part.left_s(math.inf)):
                async for event in client.watch(*tasks):
                    tasks[event.task].apply(event)
                    part.keep(figures(list(tasks.values()), submitted_s))
                    if event.event == "evaluation":
                        part.keep(gained(list(tasks.values())))
        sampling.cancel()
    if failed := [f"{one.task} {one.state}: {one.reason}" for one in tasks.values() if one.state in ENDED and one.state != "finished"]:
        raise BenchError("; ".join(failed))
    if not any(one.steps for one in tasks.values()):
        raise BenchError(f"no step was trained within {time.time() - submitted_s:.0f} s")
    complete = all(one.state == "finished" for one in tasks.values())
    found = figures(list(tasks.values()), submitted_s) | gained(list(tasks.values()))
    return found | {"complete": complete, "peak_mib": peak, "peak_total_mib": peak.get("total")}


def figures(tasks: Sequence[Progress], submitted_s: float) -> dict[str, Any]:
    """Figures of all steps until now, by task."""
    steps = [step for one in tasks for step in one.steps]
    took_s = max((step.at_s - submitted_s for step in steps), default=1.0)
    first_s = [step.first_sampled_s - submitted_s for step in steps if step.first_sampled_s is not None]
    return {
        "first_token_s": round(min(first_s), 1) if first_s else None,
        "first_step_s": {one.spec.name: round(one.steps[0].at_s - submitted_s, 1) for one in tasks if one.steps},
        "rewards": {one.spec.name: [round(one.reward_before or 0.0, 3), round(one.reward_after or 0.0, 3)] for one in tasks},
        "steps": len(steps),
        "all_steps_s": round(took_s, 1),
        "steps_per_s": round(len(steps) / took_s, 2),
        "sampled_tokens_per_s": round(sum(step.sampled_tokens for step in steps) / took_s),
    }


def gained(tasks: Sequence[Progress]) -> dict[str, Any]:
    """Held-out rewards by task and version, and the gain until the last version in which all tasks were evaluated."""
    evaluated = {one.spec.name: one.evaluations[HELD_OUT] for one in tasks if HELD_OUT in one.evaluations}
    common = set[int].intersection(*map(set[int], evaluated.values())) if len(evaluated) == len(tasks) else set[int]()
    ends = [(each[min(common)], each[max(common)]) for each in evaluated.values() if len(common) > 1]
    return {
        "held_out": {name: {version: found.reward for version, found in sorted(each.items())} for name, each in evaluated.items()},
        "held_out_gain": gain([(first.rewards_by_prompt(), last.rewards_by_prompt()) for first, last in ends]),
    }


def gain(pairs: Sequence[tuple[dict[int, float], dict[int, float]]]) -> dict[str, float] | None:
    """Mean gain over tasks and prompts with its 95 % interval, from rewards before and after by prompt; None without any."""
    common = sorted(set[int].intersection(*(set(one) for pair in pairs for one in pair))) if pairs else []
    gains_S_P = np.array([[after[prompt] - before[prompt] for prompt in common] for before, after in pairs], np.float64)
    return over_seeds_and_prompts(gains_S_P).to_json() | {"prompts": len(common)} if common else None


def memory_mib(stack: Stack) -> dict[str, int]:
    """Proportional set size (shared pages counted once) of each component with its children."""
    found: dict[str, int] = {}
    for component in stack.components:
        if component.process is not None and psutil.pid_exists(component.process.pid):
            root = psutil.Process(component.process.pid)
            found[component.name] = sum(usage.pss_bytes(process) for process in usage.family(root)) >> 20
    found["supervisor"] = usage.pss_bytes(psutil.Process(stack.supervisor.pid)) >> 20
    return found | {"total": sum(found.values())}


if __name__ == "__main__":
    run_or_exit("bench.stack", main)
