"""What an executor has done since it woke, and how long one of its operations takes."""

from collections import Counter
from typing import Protocol

from common.accelerators import WorkDone

NEWEST_SHARE = 0.3
"""Weight of the newest measurement in the mean duration of an operation."""


class Measured(Protocol):
    """A Parkable, or what stands for one in simulations."""

    def taken(self) -> WorkDone: ...


class Tally:
    """Sums of a Parkable's `taken`, which only this asks for."""

    def __init__(self, executable: Measured) -> None:
        self._executable = executable
        self.by_task = Counter[str]()
        """Sampled tokens, or milliseconds of steps."""
        self.busy_s = 0.0
        self.score_s = 0.0
        """Of `busy_s`, those of the function `score`."""
        self.pieces = 0
        self.piece_s: float | None = None
        """Mean seconds of the accelerator that one operation takes; None before the first."""
        self._unfinished_s = 0.0
        """Busy time since the last operation ended."""

    def begin(self) -> None:
        """From now on, count what is done since a wake."""
        self._executable.taken()
        self.by_task.clear()
        self.busy_s, self.score_s, self.pieces, self._unfinished_s = 0.0, 0.0, 0, 0.0

    def look(self) -> None:
        """Add what was done since the last look."""
        taken = self._executable.taken()
        self.by_task.update(taken.by_task)
        self.busy_s += taken.busy_s
        self.score_s += taken.score_s
        self.pieces += taken.pieces
        self._unfinished_s += taken.busy_s
        if taken.pieces:
            newest_s, self._unfinished_s = self._unfinished_s / taken.pieces, 0.0
            self.piece_s = newest_s if self.piece_s is None else self.piece_s + NEWEST_SHARE * (newest_s - self.piece_s)
