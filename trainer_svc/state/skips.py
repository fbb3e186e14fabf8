"""Skipped updates of a task: those whose numbers were not finite, and the rule by which too many fail the task. Pure.

The rule counts steps, not updates: with several passes or minibatches one bad batch makes several bad updates.
"""

from dataclasses import dataclass

WINDOW_STEPS = 100
"""Latest steps that the rule counts in, the current one included."""
MAX_IN_WINDOW = 10
"""Maximum steps of the window with a skipped update. It is absolute, so that one early skip is not a large share of few steps."""
MAX_IN_A_ROW = 3
"""Maximum consecutive steps with a skipped update."""


@dataclass(frozen=True)
class Skips:
    """Skipped updates so far. Part of a task's training state, so that a resumed run decides as one that never stopped."""

    updates: int = 0
    """Skipped updates since version 0."""
    versions: tuple[int, ...] = ()
    """Versions that the steps with a skipped update started from, ascending: those within the window at the latest of them."""

    def after(self, version: int, skipped: int) -> "Skips":
        """Skips after the step from `version`, which skipped so many updates."""
        if not skipped:
            return self
        recent = tuple(earlier for earlier in self.versions if earlier > version - WINDOW_STEPS)
        return Skips(self.updates + skipped, (*recent, version))

    def objection(self) -> str | None:
        """Why the step of the latest skip fails its task; None while the rule allows it."""
        if len(self.versions) > MAX_IN_A_ROW and self.versions[-1] - self.versions[-1 - MAX_IN_A_ROW] == MAX_IN_A_ROW:
            return f"updates of the {MAX_IN_A_ROW} steps before were skipped, too, and no more may be in a row"
        if len(self.versions) > MAX_IN_WINDOW:
            return f"updates of {len(self.versions)} of the last {WINDOW_STEPS} steps were skipped, and at most {MAX_IN_WINDOW} may be"
        return None
