"""When a task ends, by the pace of its latest steps."""

from collections.abc import Sequence

PACE_STEPS = 10
"""Maximum steps over which the pace is measured."""


def expected_end_s(ends_s: Sequence[float], steps_left: int) -> float | None:
    """Unix time at which the last of `steps_left` steps ends; None before two steps, and if none is left.

    `ends_s`: Unix times at which the latest steps ended, in order.
    """
    recent = ends_s[-PACE_STEPS - 1 :]
    if len(recent) < 2 or steps_left == 0:
        return None
    return recent[-1] + (recent[-1] - recent[0]) / (len(recent) - 1) * steps_left
