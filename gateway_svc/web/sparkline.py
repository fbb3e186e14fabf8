"""Small curves as SVG, without a script."""

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, MARGIN = 96.0, 24.0, 2.0


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
