"""Charts, sparklines, and pages of long tables.

A chart is a table, which the page also shows as text alternative; the script draws only the table's values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

MAX_ROWS = 240
"""Maximum rows of a chart; longer data is thinned to equally spaced rows and the last one."""
Over = Literal["step", "time", "tokens"]
OVERS: Mapping[Over, str] = {"step": "step", "time": "seconds since the first step", "tokens": "sampled tokens so far"}

T = TypeVar("T")
WIDTH, HEIGHT, MARGIN = 96.0, 24.0, 2.0
"""Size of a sparkline's box, and its margin, in SVG units."""
ROWS = 50
"""Rows per page of a table."""


@dataclass(frozen=True)
class ChartRow:
    x: float
    values: tuple[float | None, ...]
    """Values by series."""


@dataclass(frozen=True)
class Chart:
    title: str
    name: str
    """Unique on the page; letters and hyphens only."""
    unit: str
    over: str
    """Label of the x axis."""
    series: tuple[str, ...]
    rows: tuple[ChartRow, ...]
    """Ordered by `x`."""
    left_out: int = 0
    """Number of rows left out."""

    @property
    def summary(self) -> str:
        """The chart described in a sentence."""
        parts: list[str] = []
        for index, name in enumerate(self.series):
            values = [value for row in self.rows if (value := row.values[index]) is not None]
            if values:
                parts.append(f"{name}: {values[0]:.4g} at first, {values[-1]:.4g} at last, from {min(values):.4g} to {max(values):.4g}")
        return f"{self.title}. " + "; ".join(parts)


def thinned(items: Sequence[T], most: int = MAX_ROWS) -> list[T]:
    """At most `most` items, equally spaced, including the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


def thinning(version: int) -> int:
    """Sampling interval for a chart of `version` steps: one of every n steps (`AskSteps.every`)."""
    return max(-(-version // (MAX_ROWS - 2)), 1)


def chart(
    title: str, unit: str, over: Over, points: Mapping[str, Sequence[tuple[float, float | None]]], *, most: int = MAX_ROWS
) -> Chart | None:
    """Chart of series, each a sequence of (x, y); None without any point. Non-finite values are gaps."""
    values: dict[float, list[float | None]] = {}
    names = [name for name, found in points.items() if any(_is_finite(y) for _, y in found)]
    for index, name in enumerate(names):
        for x, y in points[name]:
            if y is not None and _is_finite(y):
                values.setdefault(x, [None] * len(names))[index] = y
    rows = [ChartRow(x, tuple(values[x])) for x in sorted(values)]
    if not rows:
        return None
    kept = thinned(rows, most)
    identity = "-".join("".join(one if one.isalnum() else " " for one in title.lower()).split())
    return Chart(title, identity, unit, OVERS[over], tuple(names), tuple(kept), len(rows) - len(kept))


def series(items: Sequence[T], xs: Sequence[float], value: Callable[[T], float | None]) -> list[tuple[float, float | None]]:
    return [(x, value(item)) for x, item in zip(xs, items, strict=True)]


def _is_finite(value: float | None) -> bool:
    return value is not None and value - value == 0


@dataclass(frozen=True)
class Sparkline:
    points: str
    """Points of a polyline in a box of WIDTH × HEIGHT; y grows downwards."""
    label: str
    """Description in words."""


def sparkline(values: Sequence[float], name: str) -> Sparkline | None:
    """Sparkline of the finite values; None for fewer than two."""
    kept = [value for value in values if value - value == 0]
    if len(kept) < 2:
        return None
    low, high = min(kept), max(kept)
    span = (high - low) or 1.0
    across = (WIDTH - 2 * MARGIN) / (len(kept) - 1)
    places = [(MARGIN + across * index, HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (value - low) / span) for index, value in enumerate(kept)]
    label = f"{name} of the last {len(kept)} steps: from {kept[0]:.3f} to {kept[-1]:.3f}, lowest {low:.3f}, highest {high:.3f}"
    return Sparkline(" ".join(f"{x:.1f},{y:.1f}" for x, y in places), label)


@dataclass(frozen=True)
class Paged(Generic[T]):
    items: Sequence[T]
    number: int
    """Page number, from 1."""
    count: int
    """Number of pages, at least 1."""
    total: int
    """Number of items on all pages."""


def paged(items: Sequence[T], number: int) -> Paged[T]:
    """Page `number` of the items; the last page if `number` is too large."""
    count = max(-(-len(items) // ROWS), 1)
    number = min(number, count)
    return Paged(items[(number - 1) * ROWS : number * ROWS], number, count, len(items))
