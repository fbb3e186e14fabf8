"""When an executor takes messages from the queue of another of its pool. Pure.

No queue may be without a reader, and a message that waits longer than it would take to move its task had better be moved. Three rules:

    taken over  the other is gone or faulty, or its oldest message has waited for longer than executors of its accelerator may; from then
                until it is awake, or nothing has waited there for as long. Such messages wake a parked executor
    helped      this executor is awake with nothing to do, and the oldest message there has waited for longer than a move costs
    left alone  otherwise

Who waits until the price of a move is spent, and then moves, never spends more than twice what it would have with foresight.
"""

from dataclasses import dataclass
from enum import StrEnum


class Taking(StrEnum):
    NOTHING = "nothing"
    HELP = "help"
    OVER = "over"


@dataclass(frozen=True)
class Sibling:
    """Another executor of the pool, in the same service."""

    is_able: bool
    """Whether a process reports as this executor, and is not faulty."""
    is_awake: bool
    waits_s: float
    """Seconds for which the oldest message in its queue has waited that no process has begun; 0 without any."""


@dataclass(frozen=True)
class Patience:
    """Seconds that a message waits at its home."""

    move_s: float
    """Before an idle executor takes it: what a move costs."""
    max_wait_s: float
    """Before any executor takes it: the accelerator's `max_wait_s`."""


def taking(sibling: Sibling, before: Taking, quiet_s: float, patience: Patience, *, is_idle: bool) -> Taking:
    """What to take from the sibling's queue now. `before`: what was taken until now. `quiet_s`: seconds since anything waited there."""
    if not sibling.is_able or sibling.waits_s > patience.max_wait_s:
        return Taking.OVER
    if before is Taking.OVER and not sibling.is_awake and quiet_s < patience.max_wait_s:
        return Taking.OVER
    return Taking.HELP if is_idle and sibling.waits_s > patience.move_s else Taking.NOTHING
