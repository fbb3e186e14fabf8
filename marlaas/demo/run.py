"""`marlaas demo`: one command from nothing to trained adapters, on a stack of its own.

It starts a stack, submits a show's tasks together, shows them while they share one base model, and ends with their gains, plots
and adapters. Nothing is left running, whether it succeeds, fails or is interrupted. The show here is three tasks of three tenants;
`composition.py` has another.
"""

import asyncio
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from common.spec import TaskSpec
from marlaas.client import Client
from marlaas.reporting import live, tables
from marlaas.reporting.progress import Progress
from marlaas.stack import control
from marlaas.stack.state_files import Stack, StackError, read_stack
from marlaas.task_file import read_task

LOOK_AT_STACK_EVERY_S = 1.0
NOT_SHOWN = (
    "not shown: that the tasks learned something new. The base model was trained on such questions, and with the likeliest token each time "
    "it knows most answers before any step; the gain is mainly a sharper distribution. `marlaas demo --compose` shows learning"
)


@dataclass(frozen=True)
class Show:
    """What a demo trains, and how it ends."""

    specs: Sequence[TaskSpec]
    pools_file: Path
    conclude: Callable[[Console, list[Progress], Path], None]
    """Called with the tasks and the folder of the stack, where `adapters/NAME` is each task's adapter."""


def three_tasks(examples: Path, pools_file: Path, seed: int, steps: int | None) -> Show:
    """The tasks in `examples`, which share the tiny base model. Raises: Reject when a file is wrong."""
    return Show(demo_tasks(examples, seed, steps), pools_file, _conclude)


def run_demo(console: Console, data: Path, show: Show, *, keep_running: bool) -> bool:
    """Whether every task finished."""
    started = time.monotonic()
    specs = list(show.specs)
    starting = control.start(control.make_plan(data, show.pools_file), end_with_parent=not keep_running)
    try:
        state = live.show_start(console, starting)
        say(console, f"ready after {time.monotonic() - started:.0f} s; submitting {len(specs)} task{'s' if len(specs) > 1 else ''}")
        tasks = asyncio.run(_train_while_well(console, data, state, specs))
        say(console, f"{tables.duration(time.monotonic() - started)} in all, start included")
        show.conclude(console, tasks, data)
        return all(one.state == "finished" for one in tasks)
    finally:
        if keep_running:
            say(console, f"the stack keeps running; `marlaas status --data {data}` shows it, `marlaas down --data {data}` stops it")
        else:
            control.stop(data)
            say(console, "stopped; nothing is left running")


def demo_tasks(examples: Path, seed: int, steps: int | None) -> list[TaskSpec]:
    """Task files in `examples`, by name. Raises: Reject when one is wrong."""
    changes = {"seed": seed} | ({"steps": steps} if steps is not None else {})
    return [read_task(path).model_copy(update=changes) for path in sorted(examples.glob("*.toml"))]


async def _train_while_well(console: Console, data: Path, stack: Stack, specs: list[TaskSpec]) -> list[Progress]:
    """`_train`, until a component fails for good. Raises: StackError then."""
    training = asyncio.ensure_future(_train(console, stack, specs, data / "adapters"))
    watching = asyncio.ensure_future(_until_failing(console, data))
    try:
        await asyncio.wait({training, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not training.done():
            watching.result()
        return await training
    finally:
        for runner in (training, watching):
            runner.cancel()
        await asyncio.gather(training, watching, return_exceptions=True)


async def _until_failing(console: Console, data: Path) -> None:
    """Report each restart of a component. Raises: StackError once one keeps failing."""
    restarts: dict[str, int] = {}
    while True:
        state = read_stack(data)
        for one in state.components if state else []:
            if one.condition == "faulty":
                raise StackError(control.failure(data, one))
            if one.restarts > restarts.get(one.name, 0):
                restarts[one.name] = one.restarts
                say(console, f"{one.name} restarts: {one.detail}")
        await asyncio.sleep(LOOK_AT_STACK_EVERY_S)


async def _train(console: Console, stack: Stack, specs: list[TaskSpec], adapters: Path) -> list[Progress]:
    async with Client.connect(stack.nats_url, creds=stack.operator_key) as client:
        ids = await asyncio.gather(*(client.submit(spec) for spec in specs))
        tasks = [Progress(task, spec) for task, spec in zip(ids, specs, strict=True)]
        await live.show_tasks(console, tasks, client.watch(*ids))
        for one in tasks:
            if one.steps:
                await client.wait(one.task)
                shutil.rmtree(adapters / one.spec.name, ignore_errors=True)
                await client.pull(one.task, adapters / one.spec.name)
        return tasks


def _conclude(console: Console, tasks: list[Progress], data: Path) -> None:
    from marlaas.reporting import plots

    console.print(tables.summary_table(tasks))
    say(console, "reward before and after: means of the first and last 5 steps")
    say(console, f"adapters: {', '.join(str(data / 'adapters' / one.spec.name) for one in tasks if one.steps)}")
    say(console, f"plots: {', '.join(map(str, plots.draw(tasks, data / 'plots')))}")
    say(console, NOT_SHOWN)


def say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False)
