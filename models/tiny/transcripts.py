"""Chat transcripts, the training text of the tiny base model: short questions with a reply, and calculator dialogues."""

import operator
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tasks import QUESTION_SETS, Item, QuestionSet, wrong_number
from vocabulary import END, START

# Shares of wrong calculator dialogues; each is drawn among those that passed the one before.
GUESSED_SHARE = 0.3  # a wrong number without a call
MALFORMED_SHARE = 0.2
MISCOPIED_SHARE = 0.15  # a call with another expression than the question's
MISREAD_SHARE = 0.25  # a final answer that is not the result
CALCULATOR: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluates an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}
OPERATIONS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@dataclass(frozen=True)
class Transcript:
    """Messages in the chat-completions form; `tools` lists CALCULATOR in the system prompt."""

    messages: list[dict[str, str]]
    tools: bool = False


@dataclass(frozen=True)
class Expression:
    """Two numbers and their operation."""

    left: int
    sign: str
    right: int

    def __str__(self) -> str:
        return f"{self.left} {self.sign} {self.right}"

    @property
    def value(self) -> int:
        return OPERATIONS[self.sign](self.left, self.right)


class Author:
    """Writes transcripts, one at a time, in the shares the recipe asks for."""

    def __init__(self, seed: int, pool_size: int) -> None:
        self.rng = random.Random(seed)
        self._pools = {name: questions.items(seed * 1_000_003, pool_size) for name, questions in QUESTION_SETS.items()}
        self._names = list(QUESTION_SETS)
        self._shares = [QUESTION_SETS[name].share for name in self._names]

    def write(self, calculator_share: float, question_wrongness: float, call_wrongness: float) -> Transcript:
        """One transcript; a wrongness in [0, 1] scales the shares of wrong answers, of the questions and of the calculator dialogues."""
        if self.rng.random() < calculator_share:
            return calculation(self.rng, call_wrongness)
        name = self.rng.choices(self._names, self._shares)[0]
        return exchange(self.rng, QUESTION_SETS[name], self.rng.choice(self._pools[name]), question_wrongness)


def exchange(rng: random.Random, questions: QuestionSet, item: Item, wrongness: float) -> Transcript:
    """A question and its answer, wrong with probability wrongness · questions.wrong_share."""
    is_wrong = rng.random() < wrongness * questions.wrong_share
    reply = questions.wrong(rng, item.answer) if is_wrong else item.answer
    return Transcript([{"role": "user", "content": item.question}, {"role": "assistant", "content": reply}])


def calculation(rng: random.Random, wrongness: float) -> Transcript:
    """A calculator question: the call that copies its expression, the result, and a reply that copies the result.

    The shares of errors are those above, times `wrongness`.
    """
    asked = random_expression(rng)
    said = [("user", f"What is {asked}?")]
    if rng.random() < wrongness * GUESSED_SHARE:
        said += [("assistant", wrong_number(rng, str(asked.value)))]
    elif rng.random() < wrongness * MALFORMED_SHARE:
        said += [("assistant", malformed_call(rng, asked))]
    else:
        entered = random_expression(rng, near=asked) if rng.random() < wrongness * MISCOPIED_SHARE else asked
        result = str(entered.value)
        reply = wrong_number(rng, result) if rng.random() < wrongness * MISREAD_SHARE else result
        said += [("assistant", f"<calculator>{entered}</calculator>"), ("tool", result), ("assistant", reply)]
    return Transcript([{"role": role, "content": content} for role, content in said], tools=True)


def malformed_call(rng: random.Random, expression: Expression) -> str:
    """A call whose tag is not closed, closed by another opening, or not opened; or the expression alone."""
    text = str(expression)
    return rng.choice([f"<calculator>{text}", f"<calculator>{text}<calculator>", f"{text}</calculator>", text])


def random_expression(rng: random.Random, near: Expression | None = None) -> Expression:
    """A sum, difference or product of numbers of two or three digits; one number or the sign differs from `near`."""
    left, right = (rng.randint(10, 999 if rng.random() < 0.5 else 99) for _ in range(2))
    sign = rng.choice(list(OPERATIONS))
    if near is None:
        return Expression(left, sign, right)
    changed = [Expression(left, near.sign, near.right), Expression(near.left, near.sign, right), Expression(near.left, sign, near.right)]
    return rng.choice(changed)


def pieces(transcript: Transcript) -> list[tuple[str, bool]]:
    """The transcript as the chat template writes it, cut into (text, is it the assistant's own)."""
    written: list[tuple[str, bool]] = []
    if transcript.tools:
        written.append((f"{START}system\nTools:\n<calculator>expression</calculator>{END}\n", False))
    for message in transcript.messages:
        own = message["role"] == "assistant"
        written += [(f"{START}{message['role']}\n", False), (f"{message['content']}{END}", own), ("\n", False)]
    return written
