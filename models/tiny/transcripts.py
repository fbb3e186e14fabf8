"""Chat transcripts, the training text of the tiny base model: short questions with a reply, and calculator dialogues."""

import json
import operator
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tasks import QUESTION_SETS, Item, QuestionSet, wrong_number
from vocabulary import END, START

CALCULATOR_SHARE = 0.12
WELL_FORMED_SHARE = 0.5
HEEDED_SHARE = 0.85
TOOLS_LISTED_SHARE = 0.1
CALCULATOR: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}
_SUMS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub}


@dataclass(frozen=True)
class Transcript:
    """Messages in the chat-completions form; `tools` lists CALCULATOR in the system prompt."""

    messages: list[dict[str, str]]
    tools: bool = False


@dataclass(frozen=True)
class Expression:
    """An arithmetic expression in words of the question, and its value."""

    text: str
    value: int


class Author:
    """Writes transcripts, one at a time, in the shares the recipe asks for."""

    def __init__(self, seed: int, pool_size: int) -> None:
        self.rng = random.Random(seed)
        self._pools = {name: questions.items(seed * 1_000_003, pool_size) for name, questions in QUESTION_SETS.items()}
        self._names = list(QUESTION_SETS)
        self._shares = [QUESTION_SETS[name].share for name in self._names]

    def write(self, wrongness: float) -> Transcript:
        """One transcript; `wrongness` in [0, 1] scales every question set's share of wrong answers."""
        if self.rng.random() < CALCULATOR_SHARE:
            return calculation(self.rng)
        name = self.rng.choices(self._names, self._shares)[0]
        return exchange(self.rng, QUESTION_SETS[name], self.rng.choice(self._pools[name]), wrongness)


def exchange(rng: random.Random, questions: QuestionSet, item: Item, wrongness: float) -> Transcript:
    """A question and its answer, wrong with probability wrongness · questions.wrong_share."""
    is_wrong = rng.random() < wrongness * questions.wrong_share
    reply = questions.wrong(rng, item.answer) if is_wrong else item.answer
    return Transcript([{"role": "user", "content": item.question}, {"role": "assistant", "content": reply}])


def calculation(rng: random.Random) -> Transcript:
    """A calculator question: half the time a well-formed call and a reply from its result, else a wrong direct reply."""
    expression = random_expression(rng)
    question = {"role": "user", "content": f"Use the calculator. What is {expression.text}?"}
    right, tools = str(expression.value), rng.random() < TOOLS_LISTED_SHARE
    if rng.random() >= WELL_FORMED_SHARE:
        return Transcript([question, {"role": "assistant", "content": wrong_number(rng, right)}], tools)
    arguments = json.dumps({"expression": expression.text.replace(" ", "")})
    call = f'<tool_call>{{"name": "calculator", "arguments": {arguments}}}</tool_call>'
    reply = right if rng.random() < HEEDED_SHARE else wrong_number(rng, right)
    answers = [("assistant", call), ("tool", right), ("assistant", reply)]
    return Transcript([question, *({"role": role, "content": content} for role, content in answers)], tools)


def random_expression(rng: random.Random) -> Expression:
    """Two digits times one digit, or a sum of three terms of one or two digits."""
    if rng.random() < 0.5:
        left, right = rng.randint(10, 99), rng.randint(2, 9)
        return Expression(f"{left} * {right}", left * right)
    text = str(value := rng.randint(1, 99))
    for _ in range(2):
        sign, term = rng.choice("+-"), rng.randint(1, 99)
        text, value = f"{text} {sign} {term}", _SUMS[sign](value, term)
    return Expression(text, value)


def pieces(transcript: Transcript) -> list[tuple[str, bool]]:
    """The transcript as the chat template writes it, cut into (text, is it the assistant's own)."""
    written: list[tuple[str, bool]] = []
    if transcript.tools:
        call = 'Call one with <tool_call>{"name": ..., "arguments": ...}</tool_call>'
        written.append((f"{START}system\nTools:\n{json.dumps(CALCULATOR)}\n{call}{END}\n", False))
    for message in transcript.messages:
        own = message["role"] == "assistant"
        written += [(f"{START}{message['role']}\n", False), (f"{message['content']}{END}", own), ("\n", False)]
    return written
