"""Bodies as strict JSON: `common/formats/strict_json.py`, without what PostgreSQL cannot store, and bounded before anything is built."""

import json
import re

from pydantic import JsonValue

from common.formats import strict_json
from common.formats.bounds import OutOfBounds, check_json
from gateway_svc.problems import FieldError, Problem, invalid

INTEGERS = range(-(2**63), 2**64)
"""Whole numbers that messages can have."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_json(body: bytes) -> JsonValue:
    """Raises: Problem for what is no JSON, exceeds a bound, or has NaN, duplicate keys, NUL or lone surrogates."""
    try:
        may_be_unstorable = check_json(body)
    except OutOfBounds as error:
        raise wrong(str(error)) from None
    return read_scanned(body, may_be_unstorable=may_be_unstorable)


def read_scanned(body: bytes, *, may_be_unstorable: bool) -> JsonValue:
    """The same of a body that a JsonScan has seen. Raises: Problem."""
    try:
        found = strict_json.read(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise wrong(f"not UTF-8: byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise wrong(f"not JSON: {error.msg} at character {error.pos}") from None
    except ValueError as error:
        raise wrong(str(error)) from None
    if may_be_unstorable:
        check_values(found)
    return found


def check_values(value: JsonValue) -> None:
    """Raises: Problem for a text with NUL or a lone surrogate, keys included, and for a whole number that no message can have."""
    match value:
        case int():
            if value not in INTEGERS:
                raise wrong(f"{value if abs(value) < 2**70 else 'a whole number'} is too large")
        case str():
            if "\0" in value:
                raise wrong("a text has the character NUL")
            if _SURROGATE.search(value):
                raise wrong("a text has half of a surrogate pair")
        case list():
            for one in value:
                check_values(one)
        case dict():
            for name, one in value.items():
                check_values(name)
                check_values(one)
        case _:
            pass


def wrong(reason: str) -> Problem:
    return invalid(FieldError("", reason))
