"""A part of a long table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

ROWS = 50
"""Rows of a page of a table."""

T = TypeVar("T")


@dataclass(frozen=True)
class Paged(Generic[T]):
    items: Sequence[T]
    number: int
    """From 1."""
    count: int
    """Pages, at least one."""
    total: int
    """Items of all pages."""


def paged(items: Sequence[T], number: int) -> Paged[T]:
    """The page of that number; the last one where there are fewer."""
    count = max(-(-len(items) // ROWS), 1)
    number = min(number, count)
    return Paged(items[(number - 1) * ROWS : number * ROWS], number, count, len(items))
