"""Since when the oldest message of an executor's queues waits: NATS gives numbers of messages alone."""

from collections import deque


class Ages:
    """Since when messages wait that no process has begun, from counts alone: queues are first in, first out.

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
