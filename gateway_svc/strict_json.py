"""Bodies as strict JSON: `common/formats/strict_json.py`, without what PostgreSQL cannot store, and bounded before anything is built."""

import json
import re

from pydantic import JsonValue

from common.formats import strict_json
from gateway_svc.problems import FieldError, Problem, invalid

MAX_DEPTH = 32
"""Maximum depth of arrays and objects in a body."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_DEPTH = {"[": 1, "{": 1, "]": -1, "}": -1}
MAX_PARTS = 500_000
"""Maximum arrays and objects of a body, and half of the maximum of texts: a few bytes of each become a hundred in memory."""
INTEGERS = range(-(2**63), 2**64)
"""Whole numbers that messages can have."""
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+|[\[\]{}]', re.DOTALL)
"""Matches a text that does not end, too: otherwise every quotation mark in it would be tried as a beginning."""


def read_json(body: bytes) -> JsonValue:
    """Raises: Problem for what is no JSON, is too deep, or has NaN, duplicate keys, NUL or lone surrogates."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _wrong(f"not UTF-8: byte {error.start}") from None
    if depth_of(text) > MAX_DEPTH:
        raise _wrong(f"more than {MAX_DEPTH} arrays and objects are nested")
    try:
        found = strict_json.read(text)
    except json.JSONDecodeError as error:
        raise _wrong(f"not JSON: {error.msg} at character {error.pos}") from None
    except ValueError as error:  # also whole numbers of more than 4,300 digits
        raise _wrong(str(error)) from None
    check_values(found)
    return found


def depth_of(text: str) -> int:
    """Maximum nesting of arrays and objects, found without building any of them. Raises: Problem when there are too many."""
    deepest = depth = 0
    for number, token in enumerate(_STRING_OR_BRACKET.finditer(text)):
        if number >= 2 * MAX_PARTS:
            raise _wrong(f"too many texts, arrays and objects: at most {MAX_PARTS}")
        depth += _DEPTH.get(text[token.start()], 0)
        deepest = max(deepest, depth)
    return deepest


def check_values(value: JsonValue) -> None:
    """Raises: Problem for a text with NUL or a lone surrogate, keys included, and for a whole number that no message can have."""
    match value:
        case int():
            if value not in INTEGERS:
                raise _wrong(f"{str(value)[:40]} is too large")
        case str():
            if "\0" in value:
                raise _wrong("a text has the character NUL")
            if _SURROGATE.search(value):
                raise _wrong("a text has half of a surrogate pair")
        case list():
            for one in value:
                check_values(one)
        case dict():
            for name, one in value.items():
                check_values(name)
                check_values(one)
        case _:
            pass


def _wrong(reason: str) -> Problem:
    return invalid(FieldError("", reason))
