"""CPU time of each parser and grader of replies, by the reply's length: `python -m bench.grading`. Writes bench/results/grading.json.

Every grader reads every hostile text at 1 kB to 256 kB. The exponent is the slope of log(time) over log(length), fitted over the longer
half of the lengths: 1 is linear. The exit status is 1 where a grader's exponent, or its time at the maximum length, is above its bound.
"""

import argparse
import asyncio
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from reasoning_gym.factory import DATASETS

from bench.harness import report
from common.tool_calls import Schema, find_calls, without_calls
from env_svc.adapters.openenv import action_in
from env_svc.builtin.calculator import Calculator
from env_svc.builtin.code import written
from env_svc.builtin.math_problems import MathProblems
from env_svc.builtin.multi_hop import MultiHop
from env_svc.builtin.reasoning_gym import ReasoningGym
from env_svc.contract import Reply
from env_svc.registry import AnyEnvironment

KIB = 1024
SIZES = tuple(KIB * 2**power for power in range(9))
MAX_EXPONENT = 1.3
MAX_MS = 100.0
NOISE_MS = 5.0
"""Floor of fitted times: an armed timer makes the kernel count a process's time in ticks of 4 ms."""
TEXT: Schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
TWO: Schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a", "b"]}
TOOLS = {"search": TEXT, "calculator": TEXT, "pair": TWO}
SLOW_TO_MAKE = {
    *("acre", "arc_agi", "codeio", "composite", "futoshiki", "intermediate_integration", "knight_swap", "puzzle24", "zebra_puzzles")
}
"""Data sets that take seconds to make an item; their scorers are plain comparisons, or other data sets'."""

HOSTILE: dict[str, tuple[str, str]] = {
    "letters": ("", "a"),
    "blanks": ("", " "),
    "lines": ("", "\n"),
    "words": ("", "the a "),
    "digits": ("", "1"),
    "thousands": ("1", ",111"),
    "decimals": ("", "1.1 "),
    "endless decimals": ("", "0.3333..."),
    "mixed numbers": ("", "1 1/2 "),
    "minus": ("", "-"),
    "sum": ("1", "+1"),
    "brackets": ("", "("),
    "lists": ("", "["),
    "braces": ("", "{"),
    "quotes": ("", '"'),
    "backslashes": ("", "\\"),
    "dollars": ("", "$"),
    "prices": ("", "$1 "),
    "boxes": ("", "\\boxed{"),
    "boxes closed": ("", "\\boxed{1} and "),
    "marks": ("", "#### "),
    "sentences": ("", "the answer is "),
    "answers": ("", "answer "),
    "answer tags": ("", "<answer>"),
    "answer tags closed": ("", "<answer>1</answer>"),
    "thoughts": ("", "<think>"),
    "thoughts closed": ("", "</think>"),
    "fences": ("", "```\n"),
    "fence and lines": ("```", "\n"),
    "fence and blanks": ("```json", " "),
    "calls": ("", "<tool_call>"),
    "calls closed": ("", "<tool_call>{}</tool_call>"),
    "calls of a name": ("", '<tool_call>{"name": "pair"}</tool_call>'),
    "tags": ("", "<search>"),
    "tags closed": ("", "<search>a</search>"),
    "parameters": ("<tool_call><function=pair>", "<parameter="),
    "parameters opened": ("<tool_call><function=pair>", "<parameter=a>"),
    "parameters closed": ("<tool_call><function=pair>", "<parameter=a>1</parameter>"),
    "functions": ("<tool_call>", "<function="),
    "function ends": ("<tool_call><function=pair>", "</function> "),
    "chess": ("", "_Q"),
    "board": ("", "1 0 "),
    "pairs": ("", '"a": 1, '),
}
"""(prefix, repeated part) of each hostile reply, by name."""
ENDS = {"parameters": "</function></tool_call>", "parameters opened": "</function></tool_call>", "functions": "></function></tool_call>"}
ENDS |= {"parameters closed": "</function></tool_call>", "function ends": "</tool_call>"}


@dataclass(frozen=True)
class Grader:
    """A parser, or an environment's step, which reads a whole reply."""

    name: str
    read: Callable[[str], object]


@dataclass(frozen=True)
class GraderTimes:
    """The hostile text on which a grader is slowest at the maximum length."""

    grader: str
    text: str
    ms: dict[int, float]
    """Milliseconds by the reply's length in characters."""
    exponent: float
    """Maximum over all hostile texts that take more than NOISE_MS."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=lambda text: tuple(map(int, text.split(","))), default=SIZES, help="characters, ascending")
    parser.add_argument("--graders", type=lambda text: text.split(","), help="default: all")
    parser.add_argument("--no-write", action="store_true", help="print, and leave bench/results as it is")
    options = parser.parse_args(argv)
    machine = {} if options.no_write else report.machine()
    warnings.simplefilter("ignore")  # of libraries, which quote unreadable input
    chosen = [one for one in graders() if options.graders is None or one.name in options.graders]
    found = [measured(one, options.sizes) for one in chosen]
    result: dict[str, object] = {"machine": machine, "bounds": {"exponent": MAX_EXPONENT, "ms": MAX_MS}}
    result["graders"] = [asdict(one) for one in sorted(found, key=lambda one: -max(one.ms.values()))]
    print(json.dumps(result["graders"]) if options.no_write else f"written: {report.write('grading', result, ['env_svc'])}")
    slow = [one for one in found if one.exponent > MAX_EXPONENT or max(one.ms.values()) > MAX_MS]
    for one in slow:
        print(f"too slow: {one.grader} on {one.text}: exponent {one.exponent}, {max(one.ms.values())} ms", file=sys.stderr)
    return 1 if slow else 0


def graders(data_sets: Iterable[str] = sorted(set(DATASETS) - SLOW_TO_MAKE)) -> list[Grader]:
    """Every parser of replies, and every environment that grades their text; data sets of reasoning-gym one by one."""
    found = [
        Grader("tool calls", lambda text: find_calls(text, TOOLS)),
        Grader("text without tool calls", lambda text: without_calls(text, TOOLS)),
        Grader("code", lambda text: written(text, "double")),
        Grader("openenv action", refused_or_read),
        graded("math", MathProblems(file="word_problems.jsonl")),
        graded("calculator", Calculator()),
        graded("multi_hop", MultiHop()),
    ]
    return found + [graded(f"reasoning_gym:{name}", ReasoningGym(name)) for name in data_sets]


def refused_or_read(text: str) -> object:
    try:
        return action_in(text)
    except ValueError as error:
        return error


def graded(name: str, environment: AnyEnvironment) -> Grader:
    """The step of an environment after its first prompt."""
    opening = asyncio.run(environment.open(0, 0))
    return Grader(name, lambda text: asyncio.run(environment.step(opening.state, Reply(text))))


def measured(grader: Grader, sizes: Sequence[int]) -> GraderTimes:
    slowest: tuple[str, dict[int, float]] = "", {sizes[-1]: -1.0}
    exponent = 0.0
    for name in HOSTILE:
        times = {size: cpu_ms(grader.read, hostile(name, size)) for size in sizes}
        if times[sizes[-1]] > NOISE_MS:
            exponent = max(exponent, fitted_exponent(times))
        slowest = max(slowest, (name, times), key=lambda one: one[1][sizes[-1]])
    return GraderTimes(grader.name, slowest[0], {size: round(ms, 3) for size, ms in slowest[1].items()}, round(exponent, 2))


def hostile(name: str, size: int) -> str:
    """A text of about `size` characters."""
    begin, repeated = HOSTILE[name]
    return begin + repeated * max(1, (size - len(begin)) // len(repeated)) + ENDS.get(name, "")


def cpu_ms(read: Callable[[str], object], text: str, repeats: int = 2) -> float:
    """Minimum processor time of `repeats`, robust against other load."""
    took: list[float] = []
    for _ in range(repeats):
        began = time.process_time()
        read(text)
        took.append(1000 * (time.process_time() - began))
    return min(took)


def fitted_exponent(ms: dict[int, float]) -> float:
    """Slope of log(ms) over log(size), by least squares over the longer half of the sizes."""
    points = [(math.log(size), math.log(max(value, NOISE_MS))) for size, value in sorted(ms.items())][-max(2, len(ms) // 2) :]
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


if __name__ == "__main__":
    sys.exit(main())
