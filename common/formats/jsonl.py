"""Rows of files: JSON objects, one per line. Rows for training have `messages`, and are checked as the bytes arrive."""

import json
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any, cast

from common.formats import strict_json

MAX_ROW_BYTES = 256 * 1024
"""Maximum bytes of a line."""
ROLES = ("system", "developer", "user", "assistant", "tool")

Row = dict[str, Any]
"""`Any`: fields other than `messages` are the user's."""


class WrongRow(Exception):
    """A line that is not a valid row; the text gives its number."""


class RowChecker:
    """Checks lines in parts of any size; keeps at most one line in memory."""

    def __init__(self) -> None:
        self.rows = 0
        self._line = 0
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Check the lines completed by the next part. Raises: WrongRow."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._check(line)
        if len(self._rest) > MAX_ROW_BYTES:
            self._check(self._rest)

    def finish(self) -> int:
        """Check the last line; returns the number of rows. Raises: WrongRow, also for a file without rows."""
        self._check(self._rest)
        if not self.rows:
            raise WrongRow("line 1: the file has no row")
        return self.rows

    def _check(self, line: bytes) -> None:
        self._line += 1
        try:
            self.rows += parse_row(line) is not None
        except ValueError as error:
            raise WrongRow(f"line {self._line}: {error}") from None


def parse_row(line: bytes) -> Row | None:
    """The row of a line; None for an empty line. Raises: ValueError, with a short reason."""
    if len(line) > MAX_ROW_BYTES:
        raise ValueError(f"it has more than {MAX_ROW_BYTES} bytes")
    found = parse_object(line)
    if found is not None:
        _check_messages(found.get("messages"))
    return found


def parse_object(line: bytes) -> Row | None:
    """The object of a line. Only `\\n` ends a line: other Unicode separators may occur in a text. None for an empty line.

    Raises: ValueError, with a short reason.
    """
    line = line.removeprefix(BOM_UTF8)
    if not line.strip():
        return None
    try:
        row: object = strict_json.read(line.decode())
        if b"\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # halves of surrogate pairs
    except UnicodeError:
        raise ValueError("it is no UTF-8 text") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error.msg} at character {error.colno}") from None
    except ValueError as error:
        raise ValueError(f"it is no JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError("it is no JSON object")
    return cast("Row", row)


def offsets(lines: Iterator[bytes]) -> Iterator[int]:
    """Byte offsets of a file's lines that are not empty. `lines`: the file, iterated by lines."""
    place = 0
    for line in lines:
        if line.removeprefix(BOM_UTF8).strip():
            yield place
        place += len(line)


def _check_messages(messages: object) -> None:
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages: a list with one message at least is required")
    entries: list[object] = messages
    for place, message in enumerate(entries):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise ValueError(f"messages[{place}].role: expected one of {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str):
            raise ValueError(f"messages[{place}].content: expected a text")
        if more := sorted(set(message) - {"role", "content"}):
            raise ValueError(f"messages[{place}].{str(more[0])[:100]}: a message has a role and a content")
