"""Templates of graders: `{{item.field}}`, `{{sample.output_text}}` and `{{sample.output_json.field}}` in a text."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from common.formats import strict_json

PLACE = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
PATH = re.compile(r"(?P<root>item|sample)(?P<rest>(\.[A-Za-z0-9_-]+|\[[0-9]{1,6}\])+)")
STEP = re.compile(r"\.([A-Za-z0-9_-]+)|\[([0-9]+)\]")
MAX_CHARS = 20_000
MAX_PLACES = 32
MAX_RENDERED = 64 * 1024
"""Maximum characters of a filled template."""
_NOTHING = object()


class MissingField(Exception):
    """The row has no such field; the text names it."""


class MissingOutput(Exception):
    """The reply is not JSON, or lacks the field."""


class TooLong(Exception):
    """The filled text has more than MAX_RENDERED characters."""


@dataclass(frozen=True)
class Sample:
    """The policy's reply."""

    output_text: str

    @cached_property
    def output_json(self) -> Any:
        """The reply parsed as JSON. Raises: MissingOutput if it is not JSON. `Any`: any JSON."""
        try:
            return strict_json.read(self.output_text)
        except (ValueError, RecursionError):
            raise MissingOutput("the reply is no JSON") from None

    def as_dict(self) -> dict[str, Any]:
        try:
            return {"output_text": self.output_text, "output_json": self.output_json}
        except MissingOutput:
            return {"output_text": self.output_text, "output_json": None}


def check_template(text: str) -> str:
    """Returns `text` if it is a valid template. Raises: ValueError."""
    if len(text) > MAX_CHARS:
        raise ValueError(f"a template has at most {MAX_CHARS} characters")
    places = PLACE.findall(text)
    if len(places) > MAX_PLACES:
        raise ValueError(f"a template has at most {MAX_PLACES} places, and this one {len(places)}")
    for place in places:
        found = PATH.fullmatch(place)
        if found is None:
            raise ValueError(f"'{{{{{place[:100]}}}}}' is no place: expected item.FIELD, sample.output_text or sample.output_json")
        first = next(_steps(found["rest"]))
        if found["root"] == "sample" and first not in ("output_text", "output_json"):
            raise ValueError(f"'{{{{{place[:100]}}}}}': a sample has output_text and output_json here")
    return text


def rendered(template: str, item: Mapping[str, Any], sample: Sample) -> str:
    """The template with its placeholders filled: texts unchanged, other values as JSON. Raises: MissingField, MissingOutput, TooLong.

    A missing field takes precedence over excessive length.
    """
    values: dict[str, str] = {}
    parts, size = list[str](), 0
    for number, part in enumerate(PLACE.split(template)):
        if number % 2 and part not in values:  # every second part is a placeholder
            values[part] = _text(part, item, sample)
        parts.append(values[part] if number % 2 else part)
        size += len(parts[-1])
    if size > MAX_RENDERED:
        raise TooLong
    return "".join(parts)


def _text(place: str, item: Mapping[str, Any], sample: Sample) -> str:
    found = PATH.fullmatch(place)
    assert found is not None, "a checked template"
    steps = list(_steps(found["rest"]))
    if found["root"] == "item":
        value = _followed(item, steps)
        if value is _NOTHING:
            raise MissingField(f"the row has no '{place}'")
    else:
        value = _followed({steps[0]: getattr(sample, str(steps[0]))}, steps)
        if value is _NOTHING:
            raise MissingOutput(f"the reply has no '{place}'")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _followed(value: Any, steps: list[str | int]) -> Any:
    """The part of `value` at the path `steps`; _NOTHING if it is missing. `Any`: JSON."""
    for step in steps:
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step, _NOTHING)
        elif isinstance(step, int) and isinstance(value, list):
            entries: list[Any] = value
            value = entries[step] if step < len(entries) else _NOTHING
        else:
            return _NOTHING
    return value


def _steps(rest: str) -> Iterator[str | int]:
    for name, number in STEP.findall(rest):
        yield int(number) if number else name
