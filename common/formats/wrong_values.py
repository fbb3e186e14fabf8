"""Validation errors in plain words: the only place that turns pydantic's errors into sentences for people.

A sentence names the field, the accepted values, and the given one: `lora.rank: must be 1 or more, not 0`. HTTP, the command line, settings
and the scheduler's refusals all use these sentences.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

MAX_QUOTED_CHARS = 60
"""Maximum characters of a given text that a sentence quotes."""
MAX_NAME_CHARS = 100
"""Maximum characters of a given name in a path; no field's name is longer."""
MAX_REASON_CHARS = 2_000
"""Maximum characters of a sentence, whatever a validator quotes."""
KEY = "[key]"
"""Last part of a path that refers to an object's key instead of its value."""
_BRANCH = re.compile(r"^(str|int|float|bool|none|constrained-[a-z]+|[a-z-]+\[.*\])$", re.DOTALL)
"""Parts of a path that name a branch of a union, such as `list[str]` or `function-after[…]`: no field has such a name."""
OWN = ("value_error", "assertion_error")
"""Error types whose text is written by this project's validators."""
OR_EMPTY = "^$|"
"""Start of a pattern that also accepts an empty text."""
Context = Mapping[str, Any]
"""Numbers and names in an error. `Any`: each error type has its own."""

_ACCEPTED_BY: dict[str, str] = {}
"""Pattern → description of accepted values, set by `described`."""


def described(pattern: str, accepts: str) -> str:
    """Register the words for a pattern, used in "must be <accepts>"; returns the pattern."""
    _ACCEPTED_BY[pattern] = accepts
    return pattern


VARIABLE = described(r"^[A-Za-z_][A-Za-z0-9_]{0,63}$", "a name of letters, digits and '_', 64 characters at most, no digit first")


def complaints(error: ValidationError, *, quoting: bool = True) -> list[str]:
    """One sentence per invalid field. `quoting`: whether sentences may show the given value, which may be a secret or a user's prompt."""
    return [f"{field}: {reason}" if field else reason for field, reason in wrong_fields(error.errors(), quoting=quoting)]


def first_complaint(error: ValidationError, *, quoting: bool = True) -> str:
    return complaints(error, quoting=quoting)[0]


def wrong_fields(details: Sequence[ErrorDetails], *, quoting: bool = True) -> list[tuple[str, str]]:
    """Path of each invalid field (empty for the whole value) and its reason, one entry per field."""
    fields: dict[str, list[ErrorDetails]] = {}
    for detail in details:
        fields.setdefault(field_of(detail["loc"]), []).append(detail)
    return [(field, reason_of(*branches, quoting=quoting)) for field, branches in fields.items()]


def reason_of(*branches: ErrorDetails, quoting: bool = True) -> str:
    """Reason why one value is invalid. `branches`: one error for each type that it may have."""
    found: dict[str, ErrorDetails] = {}
    for detail in branches:
        found.setdefault(_accepted(detail), detail)
    return _reason(found, quoting=quoting)


def field_of(place: Sequence[int | str]) -> str:
    """Path such as `evaluation.protocol.0.seed`; an object's key is named in the reason instead."""
    kept = place[:-2] if place[-1:] == (KEY,) else place
    return ".".join(str(part)[:MAX_NAME_CHARS] for part in kept if isinstance(part, int) or not _BRANCH.match(part))


def _reason(branches: Mapping[str, ErrorDetails], *, quoting: bool) -> str:
    """Reason why a field is invalid. `branches`: for each type that it may have, a description of accepted values → the type's error."""
    alone = len(branches) == 1
    detail = next((one for one in branches.values() if one["type"] in ("too_short", "too_long")), next(iter(branches.values())))
    first, *others = [one if alone else AMONG_OTHERS.get((one, of["type"]), one) for one, of in branches.items()]
    accepted = " or ".join([first, *(one.removeprefix("must be ") for one in others)])
    said = f"its key '{str(detail['loc'][-2])[:MAX_NAME_CHARS]}' {accepted}" if detail["loc"][-1:] == (KEY,) else accepted
    said = said if len(said) <= MAX_REASON_CHARS else f"{said[: MAX_REASON_CHARS - 1]}…"
    return f"{said}{_given(detail, said)}" if quoting else said


def _accepted(detail: ErrorDetails) -> str:
    """Description of accepted values, as the predicate of a sentence about the field."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in PLAIN:
        return PLAIN[kind]
    if kind in WITH_CONTEXT:
        return WITH_CONTEXT[kind](context)
    if kind in OWN:
        return str(detail["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return re.sub(r"^(\w+ ){1,2}should ", "must ", str(detail["msg"]))


def _given(detail: ErrorDetails, said: str) -> str:
    """End of a sentence: the given value, unless the sentence contains it already."""
    kind, value = detail["type"], detail.get("input")
    shown = str(len(str(value))) if kind in ("string_too_long", "string_too_short") and value else _shown(value)
    if detail["loc"][-1:] == (KEY,) or not shown:
        return ""
    if kind in OWN:
        return f" (given: {shown})" if shown not in said and not isinstance(value, dict | list | tuple) else ""
    return f", not {shown}" if said.startswith("must ") and kind not in ("too_short", "too_long") else ""


def _shown(value: object) -> str:
    """A value as its sender wrote it; empty if it is not shown."""
    match value:
        case None | bool():
            return json.dumps(value)
        case int() | float():
            return f"{value}"[:MAX_QUOTED_CHARS]
        case str():
            return repr(value if len(value) <= MAX_QUOTED_CHARS else f"{value[: MAX_QUOTED_CHARS - 1]}…")
        case dict():
            return "an object"
        case list() | tuple():
            return "a list"
        case _:
            return ""


def _words_of(pattern: str) -> str:
    without = pattern.removeprefix(OR_EMPTY)
    words = _ACCEPTED_BY.get(without, f"like {without}")
    return words if without == pattern else f"empty, or {words}"


def _tag_field(context: Context) -> str:
    """Name of the field that selects the type of a union, without quotation marks."""
    return str(context["discriminator"]).strip("'")


def _bound(more: str) -> Callable[[Context], str]:
    def accepted(context: Context) -> str:
        (value,) = (context[name] for name in ("gt", "ge", "lt", "le") if name in context)
        return more.format(f"{value:g}" if isinstance(value, float) else value)

    return accepted


NOT_EMPTY = "must not be empty"


def _counted(name: str, one: str, many: str, end: str) -> Callable[[Context], str]:
    def accepted(context: Context) -> str:
        number, actual = context[name], context.get("actual_length")
        if number == 1 and end == "more":
            return NOT_EMPTY
        return f"must have {number} {one if number == 1 else many} or {end}{f', not {actual}' if actual is not None else ''}"

    return accepted


AMONG_OTHERS = {
    (NOT_EMPTY, "string_too_short"): "must be a text that is not empty",
    (NOT_EMPTY, "too_short"): "must be a list that is not empty",
}
"""Description and error type → description to use instead if the value may also have other types."""
WHOLE, NUMBER, TRUTH, TEXT, LIST, OBJECT = (
    "must be a whole number",
    "must be a number",
    "must be true or false",
    "must be a text",
    "must be a list",
    "must be an object of fields",
)
DATE, MOMENT = "must be a date, such as 2026-01-31", "must be a date and time, such as 2026-01-31T12:00:00Z"
PLAIN = {
    "missing": "required, but not given",
    "extra_forbidden": "no such field",
    "none_required": "must be null",
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), WHOLE),
    **dict.fromkeys(("float_type", "float_parsing", "decimal_type", "decimal_parsing"), NUMBER),
    "finite_number": "must be a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), TRUTH),
    **dict.fromkeys(("string_type", "string_unicode"), TEXT),
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type"), LIST),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type", "named_tuple_type"), OBJECT),
    **dict.fromkeys(("date_type", "date_parsing", "date_from_datetime_parsing", "date_from_datetime_inexact"), DATE),
    **dict.fromkeys(("datetime_type", "datetime_parsing", "datetime_from_date_parsing", "datetime_object_invalid"), MOMENT),
    "timezone_aware": "must name its time zone, as Z or +01:00",
    "recursion_loop": "must not contain itself",
}
"""Error type → description of accepted values."""
WITH_CONTEXT: dict[str, Callable[[Context], str]] = {
    "greater_than": _bound("must be more than {}"),
    "greater_than_equal": _bound("must be {} or more"),
    "less_than": _bound("must be less than {}"),
    "less_than_equal": _bound("must be {} or less"),
    "literal_error": lambda context: f"must be {context['expected']}",
    "enum": lambda context: f"must be {context['expected']}",
    "string_pattern_mismatch": lambda context: f"must be {_words_of(context['pattern'])}",
    "string_too_short": _counted("min_length", "character", "characters", "more"),
    "string_too_long": _counted("max_length", "character", "characters", "fewer"),
    "bytes_too_short": _counted("min_length", "byte", "bytes", "more"),
    "bytes_too_long": _counted("max_length", "byte", "bytes", "fewer"),
    "too_short": _counted("min_length", "entry", "entries", "more"),
    "too_long": _counted("max_length", "entry", "entries", "fewer"),
    "union_tag_invalid": lambda context: f"{_tag_field(context)} must be one of {context['expected_tags']}, not {_shown(context['tag'])}",
    "union_tag_not_found": lambda context: f"needs the field {_tag_field(context)}",
    "json_invalid": lambda context: f"is not JSON: {context['error']}",
}
"""Error types whose description contains a limit, a pattern or names."""
