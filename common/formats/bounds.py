"""Limits of users' request bodies, checked on their bytes before any value is built; and of models, before an error is made per field.

One byte of a body may take a hundred bytes of memory, and microseconds of the event loop: for example an empty array of MessagePack, an
element of JSON, or a length that a header claims. So values are counted, at the speed of `bytes.count` if the format permits it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from annotated_types import GroupedMetadata, MaxLen
from pydantic import BaseModel, BeforeValidator, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

MAX_VALUES = 10_000
"""Maximum values of a body, at any depth; larger data belongs in files."""
MAX_DEPTH = 32
"""Maximum nesting of arrays and objects."""
PART_BYTES = 64 * 1024
"""Bytes scanned before the event loop gets a turn: half a millisecond."""
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
MAX_DIGITS = 400
"""Maximum digits of a number: parsing time grows with the square of their number, and no float needs as many."""
_NINES = bytes.maketrans(b"012345678", b"9" * 9)
MESSAGE_DIGITS = 19
"""Digits from which a number may be too large for a message; the largest permitted ones have 19 or 20 (`gateway_svc/bodies.py`)."""
_FRACTIONS = (b".", b"e", b"E")
"""Characters found only in numbers with fractions, or in `true` and `false`."""
_PACKED_FIXED = {
    0xC0: 0,
    0xC2: 0,
    0xC3: 0,
    0xCA: 4,
    0xCB: 8,
    **{0xCC + n: 2 ** (n % 4) for n in range(8)},
    **{0xD4 + n: 1 + 2**n for n in range(5)},
}
"""First byte → size in bytes of the value after it: constants, numbers, fixed extensions."""
_PACKED_SIZED = {
    0xC4: (1, 0),
    0xC5: (2, 0),
    0xC6: (4, 0),
    0xC7: (1, 1),
    0xC8: (2, 1),
    0xC9: (4, 1),
    0xD9: (1, 0),
    0xDA: (2, 0),
    0xDB: (4, 0),
}
"""First byte → size of the length after it, and of the type after that, in bytes; for bytes, extensions and texts."""
_PACKED_NESTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""First byte → size of the count after it in bytes, and values per entry; for arrays and maps."""


class OutOfBounds(ValueError):
    """A limit is exceeded; the text names it."""


class JsonScan:
    """Counts the values of a JSON text fed in parts. Invalid JSON is counted up to its first error, and may pass."""

    def __init__(self, max_values: int = MAX_VALUES, max_ids: int = 0) -> None:
        """`max_ids`: maximum whole numbers in addition to `max_values`. Texts, arrays, objects and fractions take longer to parse, and so
        count against `max_values` alone."""
        self._max_values = max_values
        self._max_ids = max_ids
        self._values = 0
        self._dear = 0
        self._depth = 0
        self._is_in_text = 0
        self._held = b""
        """A backslash at the end of the last part, which belongs to the next character."""
        self._ends_in_digit = False
        self.may_be_unstorable = False
        """Whether the text may contain a null character, half of a surrogate pair, or a number beyond 64 bits; otherwise values need no
        check."""

    def feed(self, part: bytes) -> None:
        """Scan the next part. Raises: OutOfBounds."""
        part = self._held + part
        is_cut = part.endswith(b"\\") and (len(part) - len(part.rstrip(b"\\"))) % 2 == 1
        part, self._held = (part[:-1], b"\\") if is_cut else (part, b"")
        bare = part
        if b"\\" in part:
            self.may_be_unstorable |= b"\\u" in part
            bare = part.replace(b"\\\\", b"").replace(b'\\"', b"")  # each remaining quotation mark starts or ends a string
        if bare.count(b'"') > 4 * self._max_values + 2:  # a key and a value per entry
            raise _too_many(self._max_values)
        pieces = bare.split(b'"')
        outside = b'"'.join(pieces[self._is_in_text :: 2])
        texts = (len(pieces) - self._is_in_text) // 2
        self._is_in_text ^= (len(pieces) - 1) % 2
        for bracket in outside.translate(None, _NO_BRACKETS):
            self._depth += 1 if bracket in b"[{" else -1
            if self._depth > MAX_DEPTH:
                raise _too_deep(MAX_DEPTH)
        opened = outside.count(b"[") + outside.count(b"{")
        self._values += outside.count(b",") + opened
        self._dear += texts + opened + sum(map(outside.count, _FRACTIONS)) if self._max_ids else 0
        if self._values > self._max_values + self._max_ids or self._dear > self._max_values:
            raise _too_many(self._max_values)
        self._look_at_numbers(outside)

    def _look_at_numbers(self, outside: bytes) -> None:
        """Check numbers. `outside`: the text without its strings. Raises: OutOfBounds."""
        nines = outside.translate(_NINES)  # a regular expression would restart at each digit
        is_long = b"9" * MESSAGE_DIGITS in nines or (self._ends_in_digit and nines.startswith(b"9"))
        self.may_be_unstorable |= is_long or any(sign in outside for sign in (b"+", b"N", b"I"))  # exponents, NaN, Infinity
        self._ends_in_digit = nines.endswith(b"9")
        if is_long and b"9" * (MAX_DIGITS + 1) in nines:
            raise OutOfBounds(f"a number has more than {MAX_DIGITS} digits")


def check_json(body: bytes, max_values: int = MAX_VALUES) -> bool:
    """Scan a body; returns `JsonScan.may_be_unstorable`. Raises: OutOfBounds."""
    scan = JsonScan(max_values)
    for start in range(0, len(body), PART_BYTES):
        scan.feed(body[start : start + PART_BYTES])
    return scan.may_be_unstorable


def check_packed(body: bytes, max_values: int = MAX_VALUES, max_depth: int = MAX_DEPTH) -> None:
    """Check a MessagePack body. Arrays and maps count with the entries that they claim, since a parser allocates as many. A truncated body
    may pass. Raises: OutOfBounds.
    """
    at, values, open_ = 0, 0, [1]
    while open_ and at < len(body):  # parsers ignore bytes after the first value
        open_[-1] -= 1
        at, entries, of_each = _packed(body, at)
        if entries:
            values += entries
            open_.append(entries * of_each)
            if values > max_values:
                raise _too_many(max_values)
            if len(open_) > max_depth + 1:
                raise _too_deep(max_depth)
        while open_ and open_[-1] == 0:
            open_.pop()


def _packed(body: bytes, at: int) -> tuple[int, int, int]:
    """Position after a value (for an array or map: after its header), its number of entries, and values per entry (both 0 for others)."""
    first = body[at]
    if first < 0x80 or first >= 0xE0:
        return at + 1, 0, 0
    if first < 0xA0:
        return at + 1, first & 0x0F, 2 if first < 0x90 else 1
    if first < 0xC0:
        return at + 1 + (first & 0x1F), 0, 0
    if first in _PACKED_NESTED:
        size, of_each = _PACKED_NESTED[first]
        return at + 1 + size, int.from_bytes(body[at + 1 : at + 1 + size]), of_each
    if first in _PACKED_SIZED:
        size, more = _PACKED_SIZED[first]
        return at + 1 + size + more + int.from_bytes(body[at + 1 : at + 1 + size]), 0, 0
    return at + 1 + _PACKED_FIXED.get(first, 0), 0, 0


def _too_many(max_values: int) -> OutOfBounds:
    return OutOfBounds(f"more than {max_values} values; move data into files")


def _too_deep(max_depth: int) -> OutOfBounds:
    return OutOfBounds(f"more than {max_depth} arrays and objects are nested")


MAX_UNKNOWN = 20
"""Maximum unknown fields that an error names one by one."""


@dataclass(frozen=True)
class Few(GroupedMetadata):
    """Maximum number of entries of a list or object, as a marker in `Annotated`; checked before any entry is."""

    most: int

    def __iter__(self) -> Iterator[object]:
        yield MaxLen(self.most)
        yield BeforeValidator(self._counted)

    def _counted(self, value: object) -> object:
        if isinstance(value, list | tuple | dict) and (entries := len(value)) > self.most:
            raise PydanticKnownError("too_long", {"field_type": "List", "max_length": self.most, "actual_length": entries})
        return value


class FewEntries(BaseModel):
    """A model that refuses more than MAX_UNKNOWN unknown fields with a single error; fewer are named one by one."""

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: object) -> object:
        if isinstance(value, dict) and len(value) > MAX_UNKNOWN:  # rare: sections of each message pass through here
            given, known = len(value), cls.model_fields
            if given > len(known) + MAX_UNKNOWN:
                said = {"given": given, "known": ", ".join(known)}
                raise PydanticCustomError("many_fields", "has {given} fields; known here: {known}", said)
        return value
