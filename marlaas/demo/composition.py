"""`marlaas demo --compose`: one task that its base model cannot do, learned from the reward alone.

It ends with the curve on held-out programs over the range of the committed benchmark's seeds (`bench/results/learning.json`), and with the
model's replies to three held-out questions before and after.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from common.client_api.errors import ClientError
from common.spec import TaskSpec
from marlaas.demo.run import Show, say
from marlaas.reporting.progress import Progress
from marlaas.task_file import read_task

RESULT = Path("bench") / "results" / "learning.json"
BASE = Path("models") / "compose"
EXAMPLE = Path("examples") / "compose"
HELD_OUT = "held-out"
"""The example's evaluation protocol that asks for held-out programs."""


@dataclass(frozen=True)
class Earlier:
    """What the committed benchmark says."""

    commit: str
    curves: list[dict[int, float]]
    """Right answers to held-out questions by version, of each seed of RL on the committed base model."""
    questions: list[tuple[str, str]]
    """Held-out questions and their right results."""


def composition(root: Path, seed: int, steps: int | None) -> Show:
    """The composition task of the data files in `root`. Raises: ClientError when the benchmark's result is not there."""
    earlier = read_earlier(root / RESULT)
    spec = read_task(root / EXAMPLE / "compose.toml").model_copy(update={"seed": seed} | ({"steps": steps} if steps is not None else {}))

    def conclude(console: Console, tasks: list[Progress], data: Path) -> None:
        _conclude(console, tasks[0], data, root / BASE, earlier)

    return Show([spec], root / EXAMPLE / "pools.toml", conclude)


def read_earlier(path: Path) -> Earlier:
    """The benchmark's result. Raises: ClientError when it is not there."""
    if not path.exists():
        raise ClientError(f"no {path}, which the curve is drawn over; `python -m bench.learning` makes it")
    found = json.loads(path.read_text())
    runs = [run for run in found["runs"].values() if run["kind"] == "rl" and run["base"] == 0]
    curves = [{int(version): reward for version, reward in run["held_out"].items() if reward is not None} for run in runs]
    return Earlier(found["commit"], curves, [(question, right) for question, _, right in found["bases"]["0"]["replies"]])


def _conclude(console: Console, one: Progress, data: Path, base: Path, earlier: Earlier) -> None:
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
    """Replies in plain transformers, without the stack, of the base model with an adapter where one is given."""
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
