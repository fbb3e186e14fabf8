"""JSON as RFC 8259 has it, and no more: what Python's reader takes besides is refused, and so is what PostgreSQL cannot store."""

import json
import re
from typing import NoReturn

from pydantic import JsonValue

from gateway_svc.problems import FieldError, Problem, invalid

MAX_DEPTH = 32
"""Maximum depth of arrays and objects in a body."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_DEPTH = {"[": 1, "{": 1, "]": -1, "}": -1}
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def read_json(body: bytes) -> JsonValue:
    """Raises: Problem for what is no JSON, is too deep, or has NaN, duplicate keys, NUL or lone surrogates."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _wrong(f"not UTF-8: byte {error.start}") from None
    if depth_of(text) > MAX_DEPTH:
        raise _wrong(f"more than {MAX_DEPTH} arrays and objects are nested")
    try:
        found = json.loads(text, parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise _wrong(f"not JSON: {error.msg} at character {error.pos}") from None
    except ValueError as error:  # whole numbers of more than 4,300 digits
        raise _wrong(str(error)) from None
    check_texts(found)
    return found


def depth_of(text: str) -> int:
    """Maximum nesting of arrays and objects, found without building any of them."""
    deepest = depth = 0
    for token in _STRING_OR_BRACKET.findall(text):
        depth += _DEPTH.get(token, 0)
        deepest = max(deepest, depth)
    return deepest


def check_texts(value: JsonValue) -> None:
    """Raises: Problem for a text with NUL or a lone surrogate, keys included."""
    match value:
        case str():
            if "\0" in value:
                raise _wrong("a text has the character NUL")
            if _SURROGATE.search(value):
                raise _wrong("a text has half of a surrogate pair")
        case list():
            for one in value:
                check_texts(one)
        case dict():
            for name, one in value.items():
                check_texts(name)
                check_texts(one)
        case _:
            pass


def _no_number(name: str) -> NoReturn:
    raise _wrong(f"{name} is no number of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise _wrong(f"{digits[:40]} is too large")
    return number


def _without_duplicates(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _wrong(f"the key '{next(name for name in names if names.count(name) > 1)[:100]}' is given twice")
    return found


def _wrong(reason: str) -> Problem:
    return invalid(FieldError("", reason))
