"""Tables that fit any width: less important columns are dropped first, reasons are truncated last.

Pure functions to rich's renderables. Width None (a pipe, or `--wide`): every column and complete reasons.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.table import Column, Table
from rich.text import Text

R = TypeVar("R")
PADDING = 2
"""Characters between two columns."""
MIN_REASON_WIDTH = 24
"""Minimum width of a reason; columns are dropped to make room for it."""


@dataclass(frozen=True)
class Field(Generic[R]):
    header: str
    cell: Callable[[R], Text | str]
    rank: int = 0
    """Order in which columns are dropped: the highest rank first; 0: never."""


def listing(records: Sequence[R], fields: Sequence[Field[R]], reason: Callable[[R], str], width: int | None) -> Table:
    """Table with as many `fields` as fit in `width` characters, and each record's reason in the rest of the line."""
    cells = {field.header: [_text(field.cell(record)) for record in records] for field in fields}
    widths = {header: max(len(header), *(cell.cell_len for cell in column)) for header, column in cells.items()}
    reasons = [" ".join(reason(record).split()) for record in records]
    shown = list(fields)
    while width is not None and _taken(shown, widths) + _wanted(reasons) > width and any(field.rank for field in shown):
        shown.remove(max(shown, key=lambda field: field.rank))
    headers = [field.header for field in shown]
    table = Table(*(_whole(header) for header in headers), box=None, header_style="bold", pad_edge=False, padding=(0, PADDING, 0, 0))
    if any(reasons):
        table.add_column("reason", no_wrap=True, overflow="ignore", style="dim")
    left = None if width is None else max(1, width - _taken(shown, widths))
    for row, text in enumerate(reasons):
        last = Text(text)
        if left is not None:
            last.truncate(left, overflow="ellipsis")
        table.add_row(*(cells[header][row] for header in headers), *([last] if any(reasons) else []))
    return table


def _text(cell: Text | str) -> Text:
    return Text(cell) if isinstance(cell, str) else cell


def _taken(shown: Sequence[Field[R]], widths: dict[str, int]) -> int:
    return sum(widths[field.header] + PADDING for field in shown)


def _wanted(reasons: Sequence[str]) -> int:
    return min(MIN_REASON_WIDTH, max(map(len, reasons), default=0))


def _whole(header: str) -> Column:
    """A column that is never truncated, because ids are copied from it."""
    return Column(header, no_wrap=True, overflow="ignore")


def scaled(value: float, unit: str = "") -> str:
    """1234567 → 1.2 M, or 1.2 MB with the unit "B"."""
    for limit, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.1f} {prefix}{unit}"
    return f"{value:.0f} {unit}".rstrip()
