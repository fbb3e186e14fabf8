"""Runs graders on a reply. A grader that fails gives 0 and is counted in the component ERRORS; one that cannot run voids the attempt."""

import asyncio
import math
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rapidfuzz import fuzz

from common.formats.jsonl import Row
from common.graders import (
    Grader,
    MissingField,
    MissingOutput,
    MultiGrader,
    PythonGrader,
    Sample,
    SimpleGrader,
    StringCheckGrader,
    TextSimilarityGrader,
    TooLong,
    rendered,
)
from env_svc.errors import WrongOptions
from env_svc.sandboxes.current import current, refuse_unsupported
from env_svc.sandboxes.sandbox import Bounds, Sandbox

BOUNDS = Bounds(time_s=10.0)
IN_THREAD_CHARS = 2_000
"""Text length from which a comparison runs in a thread, as it would block the event loop."""
MAX_CELLS = 2**27
"""Maximum product of the lengths of two compared texts: a comparison then blocks this process for at most tens of ms."""
ERRORS = "grader_errors"
"""Name of the component that counts failed graders."""


@dataclass(frozen=True)
class Grade:
    value: float
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """Name of a grader → its grade, for a grader of the type `multi`; else empty."""
    errors: int = 0


class Grading:
    """One grader, ready to run."""

    def __init__(self, grader: Grader) -> None:
        """Raises: WrongOptions if it needs a sandbox and this process has none."""
        self._grader = grader
        simple = list(grader.graders.values()) if isinstance(grader, MultiGrader) else [grader]
        self._sandbox: Sandbox | None = None
        if any(isinstance(one, PythonGrader) for one in simple):
            self._sandbox = current("a grader of the type 'python'")

    def check(self, item: Row) -> None:
        """Raises: WrongOptions for a template with a field that this row lacks."""
        grader = self._grader
        for one in grader.graders.values() if isinstance(grader, MultiGrader) else [grader]:
            if not isinstance(one, PythonGrader):
                with suppress(MissingOutput, TooLong):
                    _texts(one, item, Sample("null"))

    async def grade(self, item: Row, text: str) -> Grade:
        """Raises: WrongOptions for a row that lacks a field; Unsupported, SandboxUnavailable."""
        sample, grader = Sample(text), self._grader
        if not isinstance(grader, MultiGrader):
            value = await self._simple(grader, item, sample)
            return Grade(value or 0.0, {}, int(value is None))
        found = {name: await self._simple(one, item, sample) for name, one in grader.graders.items()}
        values, errors = {name: value or 0.0 for name, value in found.items()}, sum(value is None for value in found.values())
        try:
            value = grader.formula.value(values)
        except (ArithmeticError, ValueError):
            value = math.nan
        return Grade(value, values, errors) if math.isfinite(value) else Grade(0.0, values, errors + 1)

    async def _simple(self, grader: SimpleGrader, item: Row, sample: Sample) -> float | None:
        """Grade; None if the grader failed."""
        if isinstance(grader, PythonGrader):
            return await self._by_program(grader, item, sample)
        try:
            given, reference = _texts(grader, item, sample)
        except MissingOutput:
            return 0.0
        except TooLong:
            return None
        if isinstance(grader, TextSimilarityGrader):
            if len(given) * len(reference) > MAX_CELLS:
                return None
            is_long = max(len(given), len(reference)) > IN_THREAD_CHARS
            return await asyncio.to_thread(similarity, given, reference) if is_long else similarity(given, reference)
        return checked(grader, given, reference)

    async def _by_program(self, grader: PythonGrader, item: Row, sample: Sample) -> float | None:
        assert self._sandbox is not None
        mark = secrets.token_hex(8)
        ran = await self._sandbox.run(program(grader.source, item, sample.as_dict(), mark), BOUNDS)
        if ran.error:
            refuse_unsupported(self._sandbox, grader.source, ran.error)
        return graded(ran.output, mark)


def _texts(grader: StringCheckGrader | TextSimilarityGrader, item: Row, sample: Sample) -> tuple[str, str]:
    """The grader's input and reference, rendered for a row. Raises: MissingOutput; TooLong; WrongOptions for a row that lacks a field."""
    try:
        return rendered(grader.input, item, sample), rendered(grader.reference, item, sample)
    except MissingField as error:
        raise WrongOptions(f"grader '{grader.name}': {error}") from None


def checked(grader: StringCheckGrader, given: str, reference: str) -> float:
    match grader.operation:
        case "eq":
            holds = given == reference
        case "ne":
            holds = given != reference
        case "like":
            holds = reference in given
        case "ilike":
            holds = reference.casefold() in given.casefold()
    return float(holds)


def similarity(given: str, reference: str) -> float:
    """Share of equal characters, from 0 to 1."""
    return fuzz.ratio(given, reference) / 100


def program(source: str, item: Row, sample: Mapping[str, Any], mark: str) -> str:
    """The grader's source, and a call of it whose result is printed behind `mark`; row and reply are literals. `Any`: JSON."""
    return f"{source}\n\nprint('\\n{mark}', float(grade({dict(sample)!r}, {item!r})))\n"


def graded(output: str, mark: str) -> float | None:
    """The grade in the output of `program`; None without a finite number."""
    found = [line.removeprefix(f"{mark} ") for line in output.splitlines() if line.startswith(f"{mark} ")]
    try:
        value = float(found[-1]) if found else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None
