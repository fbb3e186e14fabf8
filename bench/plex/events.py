"""A clock of discrete events. Events of one moment happen in the order in which they were entered."""

import heapq
from collections.abc import Callable
from itertools import count


class Events:
    def __init__(self) -> None:
        self.now_s = 0.0
        self._order = count()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, time_s: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(time_s, self.now_s), next(self._order), happens))

    def run(self, until_s: float = float("inf")) -> None:
        """Until no event is left, or the next one is later than `until_s`."""
        while self._queue and self._queue[0][0] <= until_s:
            self.now_s, _, happens = heapq.heappop(self._queue)
            happens()
