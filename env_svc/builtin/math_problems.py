"""Environment `math`: math problems with a short answer, graded by math-verify. The door to that library.

Rows are JSON objects with a question and an answer, as in GSM8K:

    {"question": "Natalia sold 48 clips in April and half as many in May. How many?", "answer": "48 + 24 = <<48+24=72>>72 …\\n#### 72"}

The answer is the text after the last `####`, or else the whole text, which may be LaTeX. A reply's last stated answer counts
(`stated_answers.py`); without one, its last number.
"""

import logging
import re
import signal
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from latex2sympy2_extended.logic import And
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from math_verify.errors import TimeoutException
from sympy.core.relational import Relational

from env_svc.builtin.stated_answers import Stated, is_computable, is_expression, normalised, plain, stated_answers, words
from env_svc.contract import ChatMessage, Environment, Finish, Opening, Reply, Turn, WrongOptions
from env_svc.datasets import Row, row_at, rows_of_dataset, rows_of_file, text_of

GRADING_TIMEOUT_S = 2.0
"""Maximum CPU seconds to grade one reply; a slower one is wrong. math-verify's own alarm counts wall-clock time: on a busy machine it
would silently grade a right answer as wrong."""
MAX_REPLY_CHARS = 20_000
"""Maximum characters, from the end of a reply, searched for its answer."""
THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
SMALL = 1e-4
"""Magnitude below which numbers are also compared relative to their size: the library compares six decimals, so that 2⁻⁹⁹ equals 2⁻⁹⁸."""

logging.getLogger("math_verify").setLevel(logging.ERROR)  # or every process logs that its alarm is off


class MathProblems(Environment[str]):
    """One question, one reply; reward 1 if the answers are equal. The state is the answer."""

    cpu_bound = True
    components = ("correct", "answered")

    def __init__(
        self,
        *,
        file: str | None = None,
        dataset: str | None = None,
        configuration: str | None = None,
        split: str = "train",
        question_field: str = "question",
        answer_field: str = "answer",
        system: str = "",
        instruction: str = "",
    ) -> None:
        if (file is None) == (dataset is None):
            raise WrongOptions("environment 'math' needs one of the options 'file' and 'dataset'")
        self._rows: list[Row] = rows_of_file(file) if file is not None else rows_of_dataset(dataset or "", configuration, split)
        self._question, self._answer, self._system, self._instruction = question_field, answer_field, system, instruction
        if not self._rows:
            raise WrongOptions(f"environment 'math': no rows in {file or dataset}")
        for number, row in enumerate(self._rows):
            if not isinstance(row.get(question_field), str):
                raise WrongOptions(f"environment 'math': row {number} of {file or dataset} has no text '{question_field}'")
            if text_of(given := row.get(answer_field)) is None:
                reason = f"the answer '{answer_field}' of row {number} of {file or dataset} is {given!r:.40}, expected a text or a number"
                raise WrongOptions(f"environment 'math': {reason}")

    async def open(self, index: int, seed: int) -> Opening[str]:
        row = row_at(self._rows, index, seed)
        question = f"{row[self._question]}\n\n{self._instruction}" if self._instruction else str(row[self._question])
        messages = [ChatMessage(role="system", content=self._system)] if self._system else []
        return Opening([*messages, ChatMessage(role="user", content=question)], state=final_answer(text_of(row[self._answer]) or ""))

    async def step(self, state: str, reply: Reply) -> Turn[str]:
        answered, correct = False, False
        with suppress(TimeoutException), _computing_at_most(GRADING_TIMEOUT_S):
            statements = stated_answers(reply.text[-MAX_REPLY_CHARS:])
            found = _answer(statements)
            answered = bool(found)
            correct = answered and _are_equal(state, found)
            if not correct and state and not (is_expression(state) and is_computable(state)):  # a day, "no solution", 99999!
                said = next((ways for ways in statements if ways), [])
                correct = words(state) in {words(way.text) for way in said}
        return Finish(float(correct), {"correct": float(correct), "answered": float(answered or correct)})

    async def gold(self, state: str) -> str:
        return f"The answer is ${state}$."


def final_answer(answer: str) -> str:
    """The text after the last `####`, or else all of `answer`; a number without commas between thousands."""
    final = answer.rpartition("####")[2].strip().strip("$")
    return final.replace(",", "") if THOUSANDS.fullmatch(final) else final


def _answer(statements: Sequence[Sequence[Stated]]) -> Any:
    """Expressions of the last stated answer that can be parsed; empty when there is none."""
    for ways in statements:
        for way in ways:
            if found := _expression(way.text) if way.is_whole else _parsed(plain(way.text)):
                return found
    return []


def _expression(text: str) -> Any:
    """Expressions of a text that is only an answer."""
    return _parsed(f"${normalised(text)}$")


def _are_equal(answer: str, found: Any) -> bool:
    gold = (_expression(answer) if is_expression(answer) else []) or _parsed(answer)
    if not gold or not verify(gold, found, timeout_seconds=0, allow_set_relation_comp=_is_solved(found[0])):
        return False
    if not all(getattr(expression, "is_number", False) for expression in (gold[0], found[0])):
        return True
    one, other = (expression.doit().evalf() for expression in (gold[0], found[0]))
    return bool(min(abs(one), abs(other)) >= SMALL or abs(one - other) <= 1e-6 * max(abs(one), abs(other)))


def _is_solved(expression: Any) -> bool:
    """Whether an inequality is solved: a variable alone on one side, a number on the other."""
    relations = expression.args if isinstance(expression, And) else (expression,)
    return all(
        isinstance(one, Relational) and any(a.is_Symbol and b.is_number for a, b in ((one.lhs, one.rhs), (one.rhs, one.lhs)))
        for one in relations
    )


def _parsed(text: str) -> Any:
    """Equivalent expressions of the answer in a text; empty when there is none. `Any` because they are sympy's."""
    if not is_computable(text):
        return []
    return parse(text, [LatexExtractionConfig(), ExprExtractionConfig()], parsing_timeout=0)


@contextmanager
def _computing_at_most(computing_s: float) -> Generator[None]:
    """Context that limits the CPU time of its block, which must run in the main thread. Raises: TimeoutException."""

    def end(*_: object) -> None:
        raise TimeoutException

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, computing_s, computing_s)  # periodic: math-verify catches the first and tries the next pair
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
