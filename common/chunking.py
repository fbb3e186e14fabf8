"""Lists that may be too large for one message, in parts that are not."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

MAX_BYTES = 4 * 1024 * 1024
"""Of the parts of one message whose size has no bound of its own; the bus takes twice as much in all."""

T = TypeVar("T")


def in_parts(items: Sequence[T], size_bytes: Callable[[T], int]) -> Iterator[list[T]]:
    """`items` in as few lists of at most MAX_BYTES as keeps their order. An item that is larger is alone."""
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
