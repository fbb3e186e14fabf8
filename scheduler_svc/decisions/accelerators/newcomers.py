"""Tenants that come to an accelerator later than others, or back, and a tenant's pools that do. Pure.

What counts for fairness is the time of the last WINDOW_S. Who comes has none of it, and would be served alone until it had as much as the
others. So it is given what the least-served of those has that have work, as in the fair share of tokens (`sharing/fair_share.py`). What it
is given passes as the window moves on: the others lose what they were served before it came.
"""

from collections.abc import Sequence
from dataclasses import dataclass

WINDOW_S = 600.0
"""Time of the accelerator that counts for fairness."""
PRESENT = 0.5
"""Share of its fair part from which a tenant counts as having work: of a pool's time there, or of the accelerator's."""


@dataclass(frozen=True)
class Start:
    """When a tenant or pool came, and the weighted seconds that it was given."""

    at_s: float
    given_s: float

    def left_s(self, now_s: float) -> float:
        """What still counts of them."""
        return self.given_s * max(0.0, 1.0 - (now_s - self.at_s) / WINDOW_S)


@dataclass(frozen=True)
class Served:
    """One that was there before."""

    weight: float
    virtual_s: float
    """Seconds of the window divided by its weight, with what it was given."""


def starting_s(own_s: float, others: Sequence[Served]) -> float:
    """Weighted seconds that one which comes is given; `own_s`: those that it has of the window.

    It has as many then as the least-served of the others. Those are left out that had less than PRESENT of their fair part: their tools
    are slow.
    """
    if not others:
        return 0.0
    fair_s = sum(one.weight * one.virtual_s for one in others) / sum(one.weight for one in others)
    return max(0.0, min(one.virtual_s for one in others if one.virtual_s >= PRESENT * fair_s) - own_s)
