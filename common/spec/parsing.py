"""Validation of a submitted task, with messages for its user."""

import json
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import islice
from typing import Annotated, get_args, get_origin

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from common.errors import Reject
from common.formats.bounds import OutOfBounds, check_json
from common.formats.wrong_values import MAX_NAME_CHARS, field_of, reason_of
from common.spec.task import TaskSpec

MAX_BYTES = 1024 * 1024
"""Maximum bytes of a task as JSON: every message about a task carries parts of it."""
MAX_ATTEMPTS = 131_072
"""Maximum attempts of a step: one message to the trainer names all of them."""
MAX_GROUPS = 250_000_000
"""Maximum groups of a task's training, and of its evaluations, whose numbers start at 10⁹."""
MAX_ERRORS = 20
"""Maximum validation errors reported per submission."""
MAX_INTEGER = 2**63 - 1
"""Maximum integer that every message can carry."""
MIN_PROMPTS = 2
"""Minimum prompts of an evaluation for its mean to have an interval."""
MAX_WEIGHT = 1e6
MAX_DECAY = 10.0
"""Maximum weight decay: larger values make the parameters diverge within a step or two."""


class NotStorable(Reject):
    """The task contains a value that no message can carry, or PostgreSQL cannot store."""


def parse_spec(raw: dict[str, JsonValue]) -> TaskSpec:
    """Validate the task described by `raw`.

    Raises: Reject, naming every invalid field with the expected values.
    """
    _check_storable(raw)
    try:
        spec = TaskSpec.model_validate(raw)
    except ValidationError as error:
        raise Reject(*_complaints(error.errors())) from None
    if spec.evaluation.protocol and (size := len(spec.model_dump_json())) > MAX_BYTES:
        said = "evaluation.options: every protocol without options of its own has a copy, and then the task"
        raise Reject(f"{said} has {size} bytes as JSON, the maximum is {MAX_BYTES}; move data into files of the environment")
    if complaints := [*_too_much(spec)]:
        raise Reject(*complaints)
    return spec


def check_fields(raw: dict[str, JsonValue]) -> None:
    """Check each field by itself. Whether fields agree depends on the pool's defaults, which only the scheduler knows.

    Raises: Reject, as `parse_spec`.
    """
    _check_storable(raw)
    try:
        TaskSpec.model_validate(raw)
    except ValidationError as error:
        if found := [detail for detail in error.errors() if not _is_disagreement(detail)]:
            raise Reject(*_complaints(found)) from None


def _check_storable(raw: dict[str, JsonValue]) -> None:
    """Raises: NotStorable if messages or PostgreSQL cannot hold the task."""
    written = json.dumps(raw).encode()
    if (size := len(written)) > MAX_BYTES:
        raise NotStorable(f"task: it has {size} bytes as JSON, the maximum is {MAX_BYTES}; move data into files of the environment")
    try:
        may_be_unstorable = check_json(written)
    except OutOfBounds as error:
        raise NotStorable(f"task: {error}") from None
    if may_be_unstorable and (complaints := [*islice(_not_storable(raw), MAX_ERRORS)]):
        raise NotStorable(*complaints)


def _is_disagreement(detail: ErrorDetails) -> bool:
    """Whether the error comes from a validator of the whole task, or of a section."""
    place = detail["loc"]
    return detail["type"] == "value_error" and (not place or (len(place) == 1 and _model_of(TaskSpec, place[0]) is not None))


def _complaints(found: list[ErrorDetails]) -> list[str]:
    shown = [complaint for detail in found[:MAX_ERRORS] for complaint in _complaints_of(detail)][:MAX_ERRORS]
    return [*shown, *([f"and {len(found) - MAX_ERRORS} more"] if len(found) > MAX_ERRORS else [])]


def _too_much(spec: TaskSpec) -> Iterator[str]:
    """Violated limits that apply only to submissions: a task accepted before the limit existed can still be read."""
    algorithm = spec.algorithm
    if algorithm.max_refills and algorithm.advantage == "reinforce_pp":
        yield (
            f"algorithm.max_refills: {algorithm.max_refills}, but advantage 'reinforce_pp' compares attempts with the whole step, so "
            "groups of equal rewards have a gradient too and must not be discarded; use 0"
        )
    if (attempts := algorithm.group_size * algorithm.groups_per_step) > MAX_ATTEMPTS:
        of = f"{algorithm.groups_per_step} groups_per_step of group_size {algorithm.group_size}"
        yield f"algorithm: {of} are {attempts} attempts; the maximum per step is {MAX_ATTEMPTS}"
    if (groups := spec.steps * algorithm.groups_per_step) > MAX_GROUPS:
        yield f"steps: {spec.steps} of {algorithm.groups_per_step} groups_per_step are {groups} groups; a task's maximum is {MAX_GROUPS}"
    every, prompts = spec.evaluation.every, spec.evaluation.prompts_in_all
    if every and (groups := (spec.steps // every + 2) * prompts) > MAX_GROUPS:
        yield f"evaluation: {prompts} prompts every {every} of {spec.steps} steps are {groups} groups; a task's maximum is {MAX_GROUPS}"
    yield from _undecidable(spec)
    if (decay := spec.optimizer.weight_decay) > MAX_DECAY:
        yield f"optimizer.weight_decay: {decay:g} is more than {MAX_DECAY:g}; each update takes it times the learning rate off"
    for table, weights in (("weights", spec.environment.weights), ("rank_weights", spec.environment.rank_weights)):
        for name, weight in weights.items():
            if abs(weight) > MAX_WEIGHT:
                yield f"environment.{table}.{name}: {weight:g} is beyond ±{MAX_WEIGHT:g}"


def _undecidable(spec: TaskSpec) -> Iterator[str]:
    """Stop conditions that no evaluation of the task can meet."""
    decides, asked = spec.evaluation.protocols[0], {"reward": spec.stop.reward, "patience": spec.stop.patience}
    if decides.prompts < MIN_PROMPTS and spec.evaluation.decide_by == "lower_bound":
        for name in [name for name, limit in asked.items() if limit is not None]:
            yield (
                f"stop.{name}: protocol '{decides.name}' has prompts = {decides.prompts}, and a mean over so few has no interval; "
                f'use {MIN_PROMPTS} or more, or evaluation.decide_by = "mean"'
            )


def _not_storable(value: JsonValue, place: str = "") -> Iterator[str]:
    """Values that messages or PostgreSQL cannot hold, anywhere in the task, including an environment's options."""
    match value:
        case str() if "\0" in value or not _is_unicode(value):
            yield f"{place or 'task'}: a text with a null character, or with half of a surrogate pair"
        case int() | float() if not abs(value) <= MAX_INTEGER:
            yield f"{place}: {str(value)[:40]} is no number that can be stored; use a finite one below 2^63"
        case dict():
            for name, part in value.items():
                if "\0" in name or not _is_unicode(name):
                    yield f"{place or 'task'}: a name with a null character, or with half of a surrogate pair"
                yield from _not_storable(part, f"{place}.{name}" if place else name)
        case list():
            for position, part in enumerate(value):
                yield from _not_storable(part, f"{place}.{position}")
        case _:
            pass


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _complaints_of(detail: ErrorDetails) -> Iterator[str]:
    """Messages for one error; for a missing section, one per required field."""
    field, reason = field_of(detail["loc"]) or "task", reason_of(detail)
    section = _model_of(TaskSpec, detail["loc"][0]) if detail["type"] == "missing" and len(detail["loc"]) == 1 else None
    if section is not None:
        yield from (f"{field}.{name}: {reason}" for name, info in section.model_fields.items() if info.is_required())
    else:
        yield f"{field}: {reason}{_nearest(detail['loc']) if detail['type'] == 'extra_forbidden' else ''}"


def _nearest(loc: tuple[str | int, ...]) -> str:
    section: type[BaseModel] = TaskSpec
    for part in loc[:-1]:
        if isinstance(part, int):  # a table of a list
            continue
        below = _model_of(section, part)
        if below is None:
            return ""
        section = below
    known = list(section.model_fields)
    close = get_close_matches(str(loc[-1])[:MAX_NAME_CHARS], known, n=1)
    return f"; did you mean '{close[0]}'?" if close else f"; known here: {', '.join(known)}"


def _model_of(section: type[BaseModel], field: str | int) -> type[BaseModel] | None:
    """Model of the section in a field, alone or as a list of tables; None for any other field."""
    known = section.model_fields.get(str(field))
    annotation = known.annotation if known else None
    annotation = get_args(annotation)[0] if get_origin(annotation) is tuple else annotation
    annotation = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
