"""Decides when a replica takes messages from the queue of another replica of its pool, from the ages of messages there. Pure.

Every queue needs a reader, and a message should be moved if it would wait longer than moving its task takes. Three rules for a queue:

    taken over  its replica is gone or faulty, or its oldest message has waited longer than the maximum. This lasts until its replica is
                awake, or no message has waited there for the maximum time. Messages of such a queue wake this replica if it is parked
    helped      this replica is at most ¾ full, and the oldest message there has waited longer than a move costs, times 1 + its load. So the
                least loaded replica takes it
    left alone  otherwise

To wait for as long as a move costs, and then to move, costs at most twice the optimum with foresight.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

BEGUN = "messages"
"""Key in `ReplicaReport.busy`: messages that a replica has started; `messages@<name>`: only those from the queue of replica `<name>`."""
AWAKE = "awake"
"""Key in `ReplicaReport.busy`: 1 if a replica on a shared accelerator is awake, else 0."""
OWN_QUEUE = "queue"
"""Prefix of the key `queue@<name>` in `ReplicaReport.busy`: the replica reads the queue of that name; value 0 if it is faulty."""


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
    """Seconds that the oldest message in its queue has waited, of those that no process has started; 0 without any."""


@dataclass(frozen=True)
class Patience:
    """Seconds for which a message waits at its home before other replicas take it."""

    move_s: float
    """Wait before an empty replica takes it: the cost of a move."""
    max_wait_s: float
    """Wait before any replica takes it."""


MAX_LOAD = 0.75
"""Maximum load of a replica that takes from others' queues: with more, its own tasks' turns would soon wait."""


def helps_after_s(load: float, move_s: float) -> float | None:
    """Seconds for which a message must have waited elsewhere before a replica with this load takes it; None: it takes none."""
    return move_s * (1 + load) if load <= MAX_LOAD else None


def taking(sibling: Sibling, before: Taking, quiet_s: float, patience: Patience, *, load: float) -> Taking:
    """Decide whether to take messages from the sibling's queue. `before`: the previous decision. `quiet_s`: seconds since messages last
    waited there. `load`: fraction of this replica's capacity that is in use; 1 if it is parked."""
    if not sibling.is_able or sibling.waits_s > patience.max_wait_s:
        return Taking.OVER
    if before is Taking.OVER and not sibling.is_awake and quiet_s < patience.max_wait_s:
        return Taking.OVER
    after_s = helps_after_s(load, patience.move_s)
    return Taking.HELP if after_s is not None and sibling.waits_s > after_s else Taking.NOTHING


class Ages:
    """Ages of messages that no process has started, derived from NATS's counts alone: queues are first in, first out.

    A message that was started and handed back waits from its hand-back on. NATS redelivers it before all others, so this delivery does
    not mean that another message was started.
    """

    def __init__(self) -> None:
        self._arrived, self._returned = Line(), Line()
        self._delivered: int | None = None
        self._kept = self._undelivered = 0

    @property
    def oldest_s(self) -> float | None:
        """NATS's time at which the oldest message arrived or was handed back; None without any."""
        return min((each for each in (self._arrived.first_s, self._returned.first_s) if each is not None), default=None)

    def look(self, now_s: float, *, pending: int, kept: int, delivered: int) -> None:
        """Update the ages by NATS's counts. `pending`: messages never delivered. `kept`: delivered messages that no process has started.
        `delivered`: deliveries so far."""
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
    """A queue of which only the length is observed."""

    def __init__(self) -> None:
        self.count = 0
        self._came: deque[tuple[float, int]] = deque()
        """Arrival times, ascending, with the number of arrivals."""

    @property
    def first_s(self) -> float | None:
        return self._came[0][0] if self._came else None

    def add(self, now_s: float, count: int) -> None:
        if count > 0:
            self._came.append((now_s, count))
            self.count += count

    def drop(self, count: int) -> None:
        """Drop the first `count` entries, or all."""
        while count > 0 and self._came:
            at_s, of_them = self._came.popleft()
            if of_them > count:
                self._came.appendleft((at_s, of_them - count))
            self.count -= min(count, of_them)
            count -= of_them
