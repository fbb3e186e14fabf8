"""Runs of `bench.learning`: seeds of RL and coin controls, which are tasks of one stack, and rejection fine-tuning beside them.

Everything about a run is in a folder of its own: `run.json` with its curve and costs, and `adapter`. A run that has both is not repeated.
"""

import asyncio
import json
import shutil
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench.harness import report
from bench.harness.keys import operator
from bench.harness.report import ROOT
from bench.harness.services import BenchError, local_stack
from common.spec import TaskSpec
from marlaas.client import Client
from marlaas.reporting.progress import Progress
from marlaas.stack.state_files import Stack
from marlaas.task_file import read_task

EXAMPLE = ROOT / "examples" / "compose"
WORK = ROOT / ".marlaas" / "learning"
COMMIT = report.commit()
"""Commit at the start, since a run of an hour may end with other files in the checkout."""
HELD_OUT = "held-out"
"""The example's evaluation protocol that asks for held-out programs."""
Kind = Literal["rl", "coin", "rejection"]
Numbers = Callable[[Progress], dict[str, Any]]
"""What is recorded of a finished task."""


@dataclass(frozen=True)
class Arm:
    """One run: how it is trained, from which seed of the base model, with which seed of its own."""

    kind: Kind
    base: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.kind}-base-{self.base}-seed-{self.seed}"


@dataclass(frozen=True)
class Workplace:
    """Folder of the bench's bases and runs. Runs of another number of steps than the example's, which `steps` is then, are others."""

    folder: Path
    steps: int | None = None

    def base(self, seed: int) -> Path:
        return ROOT / "models" / "compose" if seed == 0 else self.folder / f"base-{seed}"

    def run(self, arm: Arm) -> Path:
        return self.folder / (arm.name if self.steps is None else f"{arm.name}-{self.steps}-steps")

    def adapter(self, arm: Arm) -> Path:
        return self.run(arm) / "adapter"

    def is_done(self, arm: Arm) -> bool:
        return (self.run(arm) / "run.json").exists()

    def finish(self, arm: Arm, found: dict[str, Any]) -> None:
        """Record a run whose adapter is in its place."""
        source = {"commit": COMMIT, "kind": arm.kind, "base": arm.base, "seed": arm.seed}
        (self.run(arm) / "run.json").write_text(json.dumps(source | found))

    def read(self, arm: Arm) -> dict[str, Any]:
        return json.loads((self.run(arm) / "run.json").read_text())


def spec_of(arm: Arm, steps: int | None) -> TaskSpec:
    """The example's task, as a task of a tenant of its own."""
    spec = read_task(EXAMPLE / "compose.toml")
    changes: dict[str, Any] = {"name": arm.name, "tenant": f"tenant-{arm.kind}-{arm.seed}", "seed": arm.seed, "steps": steps or spec.steps}
    if arm.kind == "coin":
        changes["environment"] = spec.environment.model_copy(update={"options": spec.environment.options | {"reward": "coin"}})
        protocols = [one.model_copy(update={"options": one.options | {"reward": "outcome"}}) for one in spec.evaluation.protocol]
        changes["evaluation"] = spec.evaluation.model_copy(update={"protocol": tuple(protocols)})
    return spec.model_copy(update=changes)


def train_on_stack(place: Workplace, base: int, arms: Sequence[Arm]) -> None:
    """Train all arms of one base model at once, each as a task of another tenant. Raises: BenchError when one does not finish."""
    pools = place.folder / f"pools-{base}.toml"
    table = tomllib.loads((EXAMPLE / "pools.toml").read_text())["compose"] | {"model": str(place.base(base))}
    pools.write_text("[compose]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items()))
    train(place, pools, {arm: spec_of(arm, place.steps) for arm in arms}, _numbers)


def train(place: Workplace, pools: Path, specs: dict[Arm, TaskSpec], numbers: Numbers) -> None:
    """Train tasks at once on a stack with these pools, and record each with its `numbers`. Raises: BenchError when one does not finish."""
    with local_stack(pools) as stack:
        asyncio.run(_train(place, stack, specs, numbers))


async def _train(place: Workplace, stack: Stack, specs: dict[Arm, TaskSpec], numbers: Numbers) -> None:
    started = time.monotonic()
    async with operator(stack) as client:
        tasks = {await client.submit(spec): arm for arm, spec in specs.items()}
        progress = {task: Progress(task, specs[arm]) for task, arm in tasks.items()}
        async for event in client.watch(*tasks):
            one = progress[event.task]
            one.apply(event)
            if event.event == "evaluation":
                what = f"{event.data['protocol']} at version {event.data['version']}: {event.data['reward']}"
                print(f"{time.monotonic() - started:.0f} s {tasks[event.task].name} {what}", flush=True)
            if event.event == "finished":
                await _keep(place, client, tasks[event.task], one, numbers)
    failed = [f"{tasks[task].name}: {one.state} {one.reason}" for task, one in progress.items() if one.state != "finished"]
    if failed:
        raise BenchError(f"runs that did not finish: {'; '.join(failed)}; the others are kept, so the same command repeats only these")


async def _keep(place: Workplace, client: Client, arm: Arm, one: Progress, numbers: Numbers) -> None:
    shutil.rmtree(place.run(arm), ignore_errors=True)
    await client.wait(one.task)
    await client.pull(one.task, place.adapter(arm))
    place.finish(arm, numbers(one))


def costs(one: Progress) -> dict[str, Any]:
    """Training rewards and entropy of every step of a finished task, its sampled tokens, and its seconds."""
    return {
        "rewards": [round(reward, 4) for reward in one.rewards],
        "entropy": [round(step.metrics.get("entropy", 0.0), 4) for step in one.steps],
        "sampled_tokens": one.sampled_tokens,
        "took_s": round((one.ended_s or 0.0) - (one.accepted_s or 0.0)),
    }


def _numbers(one: Progress) -> dict[str, Any]:
    return costs(one) | {"held_out": {str(version): report.reward for version, report in one.evaluations[HELD_OUT].items()}}
