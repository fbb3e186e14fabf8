"""Rollout sequences that a replica takes beside served requests. Pure.

Serving has its load for seconds or for hours. Bursts of seconds belong to the engine, which holds rollouts for single steps (`plan.py`).
A longer load withholds so much that the sequences are better sampled elsewhere: the replica then takes fewer.

Each second the room is compared with the part that serving leaves: all sequences, less serving's share of KV cache blocks (ROSE's
criterion, arXiv 2605.06534) or the share of rollout steps withheld, the larger. The room moves half of the way. The withheld share depends
on the room itself, so a whole step would overshoot: with half steps the room converges, as in Newton's square root. A change below an
eighth of all sequences is not made, so noise and bursts of 2 s change nothing. Growth takes 5 s a step and a quarter of all at most.
"""

from dataclasses import dataclass, replace
from math import ceil

MIN_CHANGE = 1 / 8
"""Minimum change of the room, as a fraction of all sequences."""
MAX_GROWTH = 1 / 4
"""Maximum growth in one step, as a fraction of all sequences."""
GROWTH_S = 5.0
"""Seconds from a change of the room to the next growth."""
UNUSED = 0.02
"""Use below which serving counts as absent."""
WINDOW_S = 10.0
"""Seconds over which `Use` is averaged."""


@dataclass(frozen=True)
class Use:
    """What serving uses, as means of WINDOW_S."""

    serving_kv: float
    """Share of the engine's KV cache blocks that served requests have."""
    withheld: float
    """Share of the rollouts that could run in a step and were held, over all steps."""


@dataclass(frozen=True)
class Room:
    """Rollout sequences that a replica takes."""

    sequences: int
    since_s: float
    """Monotonic time of the latest change."""
    most: int
    """Sequences without served requests."""
    least: int
    """Minimum sequences, whatever serving uses; at least 1."""

    @classmethod
    def of(cls, sequences: int, training_share: float, now_s: float) -> "Room":
        """All `sequences`. `training_share`: fraction of them that rollouts keep."""
        return cls(sequences, now_s, sequences, max(1, ceil(training_share * sequences)))

    @property
    def withheld(self) -> int:
        return self.most - self.sequences


def lend(before: Room, use: Use, now_s: float) -> Room:
    """The room from now on; `before` itself if it does not change. Call it once a second."""
    used, sequences = max(use.serving_kv, use.withheld), before.most
    if used >= UNUSED:
        sequences = max(before.least, round((before.sequences + before.most * (1 - used)) / 2))
        if abs(sequences - before.sequences) < MIN_CHANGE * before.most:
            return before
    if sequences > before.sequences:
        if now_s - before.since_s < GROWTH_S:
            return before
        sequences = min(sequences, before.sequences + ceil(MAX_GROWTH * before.most))
    return before if sequences == before.sequences else replace(before, sequences=sequences, since_s=now_s)
