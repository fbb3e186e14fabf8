"""Charts, small curves, and parts of long tables.

A chart is a table, which the page shows as its text alternative; the script draws what the table says, and nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

MAX_ROWS = 240
"""Maximum rows of a chart, of which a plot shows each; of more, some at equal distances, and the last."""
Over = Literal["step", "time", "tokens"]
OVERS: Mapping[Over, str] = {"step": "step", "time": "seconds since the first step", "tokens": "sampled tokens so far"}

T = TypeVar("T")
WIDTH, HEIGHT, MARGIN = 96.0, 24.0, 2.0
"""Of a small curve."""
ROWS = 50
"""Rows of a page of a table."""


@dataclass(frozen=True)
class ChartRow:
    x: float
    values: tuple[float | None, ...]
    """By series."""


@dataclass(frozen=True)
class Chart:
    title: str
    name: str
    """Unique on the page; of letters and hyphens."""
    unit: str
    over: str
    """What `x` is."""
    series: tuple[str, ...]
    rows: tuple[ChartRow, ...]
    """By `x`."""
    left_out: int = 0
    """Rows that are not shown."""

    @property
    def summary(self) -> str:
        """The chart in a sentence."""
        parts: list[str] = []
        for index, name in enumerate(self.series):
            values = [value for row in self.rows if (value := row.values[index]) is not None]
            if values:
                parts.append(f"{name}: {values[0]:.4g} at first, {values[-1]:.4g} at last, from {min(values):.4g} to {max(values):.4g}")
        return f"{self.title}. " + "; ".join(parts)


def thinned(items: Sequence[T], most: int = MAX_ROWS) -> list[T]:
    """At most `most` of them, at equal distances, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


def thinning(version: int) -> int:
    """Which of a task's steps a chart shows: one of so many (`AskSteps.every`)."""
    return max(-(-version // (MAX_ROWS - 2)), 1)


def chart(
    title: str, unit: str, over: Over, points: Mapping[str, Sequence[tuple[float, float | None]]], *, most: int = MAX_ROWS
) -> Chart | None:
    """A chart of series, each a sequence of (x, y); None without a point. Values that are not finite are gaps."""
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
    """Of a polyline in a box of WIDTH × HEIGHT; y grows downwards."""
    label: str
    """The same in words."""


def sparkline(values: Sequence[float], name: str) -> Sparkline | None:
    """None for fewer than two values that are finite."""
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
