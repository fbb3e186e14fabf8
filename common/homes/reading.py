"""When a replica takes messages from the queue of another of its pool, and since when messages of a queue wait. Pure.

No queue may be without a reader, and a message that waits longer than it would take to move its key had better be moved. Three rules:

    taken over  the other is gone or faulty, or its oldest message has waited for longer than any may; from then until it is awake, or
                nothing has waited there for as long. Such messages wake a parked replica
    helped      this replica is awake with nothing to do, and the oldest message there has waited for longer than a move costs
    left alone  otherwise

Who waits until the price of a move is spent, and then moves, never spends more than twice what it would have with foresight."""

from collections import deque
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


class Ages:
    """Since when messages wait that no process has begun, from counts alone, as NATS gives them: queues are first in, first out.

    What was begun and is handed back waits from then. NATS delivers it once more, before all others: that begins no other message.
    """

    def __init__(self) -> None:
        self._arrived, self._returned = Line(), Line()
        self._delivered: int | None = None
        self._kept = self._undelivered = 0

    @property
    def oldest_s(self) -> float | None:
        """When the oldest came or was handed back, in NATS's time; None without any."""
        return min((each for each in (self._arrived.first_s, self._returned.first_s) if each is not None), default=None)

    def look(self, now_s: float, *, pending: int, kept: int, delivered: int) -> None:
        """`pending`: messages never delivered; `kept`: delivered ones that no process has begun; `delivered`: deliveries so far."""
        deliveries = 0 if self._delivered is None else max(0, delivered - self._delivered)
        fewer, self._kept, self._delivered = self._kept - kept, kept, delivered
        if deliveries + fewer < 0:
            self._returned.add(now_s, -deliveries - fewer)
            self._undelivered -= deliveries + fewer
        repeated = min(deliveries, self._undelivered)
        begun_again = min(self._returned.count, max(0, fewer))
        self._returned.drop(begun_again)
        self._undelivered = min(self._undelivered - repeated, self._returned.count)
        self._arrived.drop(min(self._arrived.count, max(0, deliveries + fewer - repeated - begun_again)))
        came = pending + kept - self._returned.count - self._arrived.count
        self._arrived.add(now_s, came)
        self._arrived.drop(-came)


class Line:
    """A queue of which only the length is known."""

    def __init__(self) -> None:
        self.count = 0
        self._came: deque[tuple[float, int]] = deque()
        """Times, ascending, and how many came then."""

    @property
    def first_s(self) -> float | None:
        return self._came[0][0] if self._came else None

    def add(self, now_s: float, count: int) -> None:
        if count > 0:
            self._came.append((now_s, count))
            self.count += count

    def drop(self, count: int) -> None:
        """The first `count`, or all."""
        while count > 0 and self._came:
            at_s, of_them = self._came.popleft()
            if of_them > count:
                self._came.appendleft((at_s, of_them - count))
            self.count -= min(count, of_them)
            count -= of_them
