"""When a replica takes messages from the queue of another of its pool. Pure.

No queue may be without a reader, and a message that waits longer than it would take to move its key had better be moved. Three rules:

    taken over  the other is gone or faulty, or its oldest message has waited for longer than any may; from then until it is awake, or
                nothing has waited there for as long. Such messages wake a parked replica
    helped      this replica is awake with nothing to do, and the oldest message there has waited for longer than a move costs
    left alone  otherwise

Who waits until the price of a move is spent, and then moves, never spends more than twice what it would have with foresight.
"""

from dataclasses import dataclass
from enum import StrEnum

BEGUN = "messages"
"""Name, in `ReplicaReport.busy`, of messages that a replica has begun; `messages@<name>`: of the queue of the replica of that name."""
AWAKE = "awake"
"""Name, in `ReplicaReport.busy`, of 1 where a replica that takes turns is awake, else 0."""
OWN_QUEUE = "queue"
"""Beginning, in `ReplicaReport.busy`, of `queue@<name>`: the replica reads the queue of that name; 0 where it is faulty."""


class Taking(StrEnum):
    NOTHING = "nothing"
    HELP = "help"
    OVER = "over"


@dataclass(frozen=True)
class Sibling:
    """Another replica of the pool."""

    is_able: bool
    """Whether a process reports under its name, and is not faulty."""
    is_awake: bool
    waits_s: float
    """Seconds for which the oldest message in its queue has waited that no process has begun; 0 without any."""


@dataclass(frozen=True)
class Patience:
    """Seconds that a message waits at its home."""

    move_s: float
    """Before an idle replica takes it: what a move costs."""
    max_wait_s: float
    """Before any replica takes it."""


def taking(sibling: Sibling, before: Taking, quiet_s: float, patience: Patience, *, is_idle: bool) -> Taking:
    """What to take from the sibling's queue now. `before`: what was taken until now. `quiet_s`: seconds since anything waited there."""
    if not sibling.is_able or sibling.waits_s > patience.max_wait_s:
        return Taking.OVER
    if before is Taking.OVER and not sibling.is_awake and quiet_s < patience.max_wait_s:
        return Taking.OVER
    return Taking.HELP if is_idle and sibling.waits_s > patience.move_s else Taking.NOTHING
