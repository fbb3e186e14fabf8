"""TOML bodies sent by users: a parser, and a program that wraps it and needs only the standard library.

The parser is pure Python, and takes seconds for a malicious megabyte. So a large body is parsed by a separate process, with the body
on stdin and the answer on stdout.
"""

import json
import math
import os
import re
import resource
import sys
import time
import tomllib

MAX_DEPTH = 32
"""Maximum nesting, as for JSON (`bounds.py`)."""
PROCESSOR_S = 2
"""Maximum seconds of the program's processor time; MEMORY_BYTES limits its memory."""
MEMORY_BYTES = 512 * 1024 * 1024
INTEGERS = range(-(2**63), 2**64)
"""Whole numbers that a message can contain."""
_DOTTED = re.compile(rf"(?<![\w\"'.-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){{{MAX_DEPTH}}}", re.ASCII)
"""Dotted keys that nest too deep: the parser's time and memory grow with the square of their length."""
TOO_DEEP = f"more than {MAX_DEPTH} arrays and tables are nested"


def read_toml(body: bytes) -> object:
    """Parse a TOML body. Raises: ValueError, with the reason."""
    try:
        text = body.decode()
        if _DOTTED.search(text):
            raise ValueError(TOO_DEEP)
        found = tomllib.loads(text, parse_float=_finite)
        _check(found, 0)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not TOML: {error}") from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except ValueError as error:
        too_long = f"not TOML: a whole number has more than {sys.get_int_max_str_digits()} digits"  # Python's error names a function
        raise ValueError(too_long if "set_int_max" in str(error) else str(error)) from None
    return found


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"{digits[:40]} is too large")
    return number


def _check(value: object, depth: int) -> None:
    """Raises: ValueError for values that a task file cannot contain."""
    match value:
        case dict() | list():
            if depth == MAX_DEPTH:
                raise ValueError(TOO_DEEP)
            for one in value.values() if isinstance(value, dict) else value:
                _check(one, depth + 1)
        case int():
            if value not in INTEGERS:
                raise ValueError("a whole number is too large")
        case str() | float():
            pass
        case _:
            raise ValueError("dates and times are in no task file")


def main() -> None:
    """Write one line of JSON with `error` and `processor_s`, then the value as JSON."""
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_S, PROCESSOR_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    os.nice(10)  # small requests have priority
    found, error = b"", None
    try:
        found = json.dumps(read_toml(sys.stdin.buffer.read())).encode()
    except ValueError as wrong:
        error = str(wrong)
    head = json.dumps({"error": error, "processor_s": time.process_time()}).encode()
    sys.stdout.buffer.write(head + b"\n" + found)


if __name__ == "__main__":
    main()
