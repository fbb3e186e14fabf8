"""JSON according to RFC 8259: refuses the additional numbers that Python's parser accepts, and duplicate keys."""

import json
import math
from collections import Counter
from typing import NoReturn, cast

from pydantic import JsonValue

LINE_SEPARATORS = "\x85\u2028\u2029"
"""Line separators that JSON permits unescaped in texts."""
MAX_SHOWN_CHARS = 40
"""Maximum characters of the text that an error quotes."""
MAX_DIGITS = 4300
"""Maximum digits of a whole number: Python's own limit (`sys.set_int_max_str_digits`). Its error would name this function to a user."""
TOO_LONG = f"a whole number has more than {MAX_DIGITS} digits"


def on_one_line(text: str) -> str:
    """Equivalent JSON with Unicode's line separators escaped, for readers that split lines at them."""
    if text.isascii():
        return text
    for separator in LINE_SEPARATORS:
        text = text.replace(separator, f"\\u{ord(separator):04x}")
    return text


def read(text: str) -> JsonValue:
    """Parse JSON. Raises: json.JSONDecodeError; ValueError for other reasons; RecursionError if the text nests too deep."""
    try:
        found = json.loads(text, parse_constant=_no_number, parse_float=finite, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # a hook for whole numbers would take half of the time of parsing token ids
        raise ValueError(TOO_LONG) if "set_int_max" in str(error) else error from None
    return cast("JsonValue", found)


def finite(digits: str) -> float:
    """The number that `digits` denote. Raises: ValueError if it is not finite, which JSON cannot express."""
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
    """`text` made encodable as UTF-8: matching halves of a surrogate pair are joined, others become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
