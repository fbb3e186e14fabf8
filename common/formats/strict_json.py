"""JSON as RFC 8259 has it: numbers that Python's reader takes besides are refused, and keys that are given twice."""

import json
import math
from collections import Counter
from typing import NoReturn, cast

from pydantic import JsonValue

LINE_SEPARATORS = "\x85\u2028\u2029"
"""Separators of lines that JSON permits in texts as they are."""
MAX_SHOWN_CHARS = 40
"""Maximum length of the text that an error quotes."""
MAX_DIGITS = 4300
"""Python's maximum (`sys.set_int_max_str_digits`), whose own error names a function of Python."""
TOO_LONG = f"a whole number has more than {MAX_DIGITS} digits"


def on_one_line(text: str) -> str:
    """The same JSON for readers that end lines where Unicode does: in a text, a separator may be written as an escape."""
    if text.isascii():
        return text
    for separator in LINE_SEPARATORS:
        text = text.replace(separator, f"\\u{ord(separator):04x}")
    return text


def read(text: str) -> JsonValue:
    """Raises: json.JSONDecodeError; ValueError for another reason; RecursionError for a text that nests too deep."""
    try:
        found = json.loads(text, parse_constant=_no_number, parse_float=finite, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # a function of ours for whole numbers would take half of the time of reading token ids
        raise ValueError(TOO_LONG) if "set_int_max" in str(error) else error from None
    return cast("JsonValue", found)


def finite(digits: str) -> float:
    """Raises: ValueError for what JSON has no number for."""
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:MAX_SHOWN_CHARS]} is too large")
    return number


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _without_duplicates(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counted = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counted.items() if count > 1)
        raise ValueError(f"the key '{twice[:MAX_SHOWN_CHARS]}' is given twice")
    return found


def whole(text: str) -> str:
    """`text` as UTF-8 can hold it: two halves of a surrogate pair that belong together are joined, and others become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
