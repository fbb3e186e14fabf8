"""Splitting lists that may be too large for one message."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

MAX_BYTES = 4 * 1024 * 1024
"""Maximum size of a message's unbounded parts; the bus takes twice as much in all."""

T = TypeVar("T")


def in_parts(items: Sequence[T], size_bytes: Callable[[T], int]) -> Iterator[list[T]]:
    """`items` in order, in lists of at most MAX_BYTES. A larger item is alone."""
    part: list[T] = []
    total = 0
    for item in items:
        size = size_bytes(item)
        if part and total + size > MAX_BYTES:
            yield part
            part, total = [], 0
        part.append(item)
        total += size
    if part:
        yield part
