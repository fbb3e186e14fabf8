"""The question sets of the tiny base model: its reasoning-gym configurations, and its deliberate errors.

A base model that is always right leaves reinforcement learning nothing to improve; one that is never right gives it no signal. So
part of the training answers are wrong on purpose, like a careless pupil's. The right answer stays the likeliest, and sampling at
temperature 1 finds it only part of the time.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import reasoning_gym

Wrong = Callable[[random.Random, str], str]


@dataclass(frozen=True)
class Item:
    """One question, its right answer, and the reasoning-gym entry that scores replies."""

    question: str
    answer: str
    entry: dict[str, Any]


@dataclass(frozen=True)
class QuestionSet:
    """A reasoning-gym dataset with options, its share of the training text and its share of wrong answers."""

    dataset: str
    share: float
    wrong_share: float
    wrong: Wrong
    options: dict[str, Any] = field(default_factory=dict)

    def source(self, seed: int, size: int) -> Any:
        """The reasoning-gym dataset itself: indexable, and scores answers with `score_answer(answer, entry)`."""
        return reasoning_gym.create_dataset(self.dataset, seed=seed, size=size, **self.options)

    def items(self, seed: int, size: int) -> list[Item]:
        """`size` items; item i depends on seed + i alone."""
        return [Item(entry["question"], entry["answer"], entry) for entry in self.source(seed, size)]


def wrong_number(rng: random.Random, answer: str) -> str:
    """A nearby integer, or one with a digit changed; never the right one."""
    value = int(answer)
    near = [value + step for step in (-3, -2, -1, 1, 2, 3, 10, -10)]
    if value >= 0:
        near = [number for number in near if number >= 0]
    digits = list(answer)
    place = rng.randrange(answer.startswith("-"), len(digits))
    digits[place] = rng.choice("0123456789")
    candidate = str(int("".join(digits))) if rng.random() < 0.5 else str(rng.choice(near))
    return candidate if candidate != answer else str(rng.choice(near))


def wrong_word(rng: random.Random, answer: str) -> str:
    """The word with two letters exchanged, one replaced or one lost, or not reversed at all; never the right one."""
    letters = list(answer)
    place = rng.randrange(len(letters) - 1)
    kind = rng.randrange(4)
    if kind == 0:
        letters[place], letters[place + 1] = letters[place + 1], letters[place]
    elif kind == 1:
        letters[place] = rng.choice("abcdefghijklmnopqrstuvwxyz")
    elif kind == 2:
        del letters[place]
    else:
        letters.reverse()
    candidate = "".join(letters)
    return candidate if candidate != answer else answer + answer[-1]


def wrong_fraction(rng: random.Random, answer: str) -> str:
    """The fraction with its numerator or its denominator wrong."""
    numerator, denominator = answer.split("/")
    if rng.random() < 0.5:
        return f"{wrong_number(rng, numerator)}/{denominator}"
    return f"{numerator}/{wrong_number(rng, denominator)}"


QUESTION_SETS: dict[str, QuestionSet] = {
    "products": QuestionSet("products", 2.0, 0.6, wrong_number, {"min_digits": 1, "max_digits": 1}),
    "gcd": QuestionSet("gcd", 1.5, 0.6, wrong_number, {"min_value": 1, "max_value": 30}),
    "lcm": QuestionSet("lcm", 2.0, 0.5, wrong_number, {"min_value": 1, "max_value": 12}),
    "spelling": QuestionSet("spell_backward", 1.6, 0.5, wrong_word, {"min_word_len": 3, "max_word_len": 4}),
    "fractions": QuestionSet(
        "fraction_simplification",
        1.2,
        0.5,
        wrong_fraction,
        {"min_value": 1, "max_value": 9, "min_factor": 2, "max_factor": 9, "styles": ["plain"]},
    ),
    "letters": QuestionSet("letter_counting", 1.3, 0.6, wrong_number, {"min_words": 1, "max_words": 2}),
}
