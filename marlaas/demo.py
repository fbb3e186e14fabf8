"""`marlaas demo`: one command from nothing to trained adapters, on its own stack.

It starts a stack, submits a show's tasks together, displays them while they share one base model, and ends with their gains, plots
and adapters. No process is left running, whether it succeeds, fails or is interrupted. A show is three tasks of three tenants, or with
`--compose` one task that its base model cannot do and learns from the reward alone. The latter ends with its curve on held-out programs,
drawn over the range of the committed benchmark's seeds (`bench/results/learning.json`), and with replies to three held-out questions
before and after training.
"""

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from common.client_api.errors import ClientError
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
RESULT = Path("bench") / "results" / "learning.json"
BASE = Path("models") / "compose"
EXAMPLE = Path("examples") / "compose"
HELD_OUT = "held-out"
"""The example's evaluation protocol with held-out programs."""


@dataclass(frozen=True)
class Show:
    """Tasks of a demo, and the output at its end."""

    specs: Sequence[TaskSpec]
    pools_file: Path
    conclude: Callable[[Console, list[Progress], Path], None]
    """Called with the tasks and the stack's folder, where `adapters/NAME` is each task's adapter."""


def three_tasks(examples: Path, pools_file: Path, seed: int, steps: int | None) -> Show:
    """Show of the tasks in `examples`, which share the tiny base model. Raises: Reject if a file is invalid."""
    return Show(demo_tasks(examples, seed, steps), pools_file, _conclude)


def run_demo(console: Console, data: Path, show: Show, *, keep_running: bool) -> bool:
    """Run a demo; returns whether every task finished."""
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
    """Tasks of the files in `examples`, by name. Raises: Reject if one is invalid."""
    changes = {"seed": seed} | ({"steps": steps} if steps is not None else {})
    return [read_task(path).model_copy(update=changes) for path in sorted(examples.glob("*.toml"))]


async def _train_while_well(console: Console, data: Path, stack: Stack, specs: list[TaskSpec]) -> list[Progress]:
    """`_train`, until a component fails permanently. Raises: StackError in that case."""
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


@dataclass(frozen=True)
class Earlier:
    """Results of the committed benchmark."""

    commit: str
    curves: list[dict[int, float]]
    """Share of right answers to held-out questions by version, for each seed of RL on the committed base model."""
    questions: list[tuple[str, str]]
    """Held-out questions and their right results."""


def composition(root: Path, seed: int, steps: int | None) -> Show:
    """Show of the composition task, from the data files in `root`. Raises: ClientError if the benchmark's result is missing."""
    earlier = read_earlier(root / RESULT)
    spec = read_task(root / EXAMPLE / "compose.toml").model_copy(update={"seed": seed} | ({"steps": steps} if steps is not None else {}))

    def conclude(console: Console, tasks: list[Progress], data: Path) -> None:
        _conclude_composition(console, tasks[0], data, root / BASE, earlier)

    return Show([spec], root / EXAMPLE / "pools.toml", conclude)


def read_earlier(path: Path) -> Earlier:
    """Read the benchmark's result. Raises: ClientError if it is missing."""
    if not path.exists():
        raise ClientError(f"no {path}, which the curve is drawn over; `python -m bench.learning` makes it")
    found = json.loads(path.read_text())
    runs = [run for run in found["runs"].values() if run["kind"] == "rl" and run["base"] == 0]
    curves = [{int(version): reward for version, reward in run["held_out"].items() if reward is not None} for run in runs]
    return Earlier(found["commit"], curves, [(question, right) for question, _, right in found["bases"]["0"]["replies"]])


def _conclude_composition(console: Console, one: Progress, data: Path, base: Path, earlier: Earlier) -> None:
    from marlaas.reporting import plots

    reports = one.evaluations.get(HELD_OUT, {})
    curve = {version: report.reward for version, report in sorted(reports.items()) if report.reward is not None}
    if not one.steps or not curve:
        say(console, f"the task is {one.state}, and nothing was evaluated{f': {one.reason}' if one.reason else ''}")
        return
    first, last = min(curve), max(curve)
    gain = reports[last].gain
    bounds = f", gain {gain.interval[0]:+.2f} to {gain.interval[1]:+.2f} (95 %, over questions)" if gain and gain.interval else ""
    ends = f"{curve[first]:.2f} at version {first}, {curve[last]:.2f} at version {last}{bounds}"
    say(console, f"right answers to programs that were never trained on: {ends}")
    drawn = plots.draw_held_out(curve, earlier.curves, data / "plots" / "held-out.png")
    say(console, f"plot: {drawn}; the band is not of this run: {len(earlier.curves)} seeds of {RESULT}, measured at {earlier.commit}")
    console.print(_reply_table(base, data / "adapters" / one.spec.name, one.spec, earlier.questions))
    say(console, "what this shows and what not: docs/composition.md")


def _reply_table(base: Path, adapter: Path, spec: TaskSpec, questions: list[tuple[str, str]]) -> Table:
    before, after = (greedy_replies(base, folder, [asked for asked, _ in questions], spec) for folder in (None, adapter))
    table = Table("program and word", "reply before", "reply after", "right result", header_style="bold")
    for (asked, right), old, new in zip(questions, before, after, strict=True):
        table.add_row(asked, old, new, right)
    return table


def greedy_replies(base: Path, adapter: Path | None, questions: list[str], spec: TaskSpec) -> list[str]:
    """Greedy replies of the base model, with an adapter if one is given, in plain transformers without the stack."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    model: Any = AutoModelForCausalLM.from_pretrained(base)
    if adapter is not None:
        model.load_adapter(str(adapter))
    replies: list[str] = []
    for question in questions:
        chat = [{"role": "user", "content": question}]
        given = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True, return_tensors="pt")
        ids = model.generate(**given, max_new_tokens=spec.sampling.max_tokens, do_sample=False, temperature=None, top_k=None, top_p=None)
        replies.append(str(tokenizer.decode(ids[0, given["input_ids"].shape[1] :], skip_special_tokens=True)))
    return replies
