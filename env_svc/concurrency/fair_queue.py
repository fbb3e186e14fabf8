"""Fair queue: the order in which free workers take tasks' calls.

No task occupies all workers: with n of them it has at most max(1, n - 1), so a task of slow calls leaves one to the others.
Of the waiting tasks, the one with the fewest running calls comes first; among equals, the least recently served.
"""

from collections import Counter, OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Waiting items by task, and the number of running items of each task."""

    def __init__(self, workers: int) -> None:
        self.max_per_task = max(1, workers - 1)
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        """Tasks, the least recently served first."""
        self._running: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def running(self) -> int:
        return self._running.total()

    def put(self, task: str, item: T) -> None:
        self._waiting.setdefault(task, deque()).append(item)

    def discard(self, task: str, item: T) -> None:
        """Remove an item if it still waits."""
        items = self._waiting.get(task)
        if items is not None and item in items:
            items.remove(item)
            self._forget_if_idle(task)

    def take(self) -> tuple[str, T] | None:
        """The next item, counted as running until `done`; None when nothing may run now."""
        allowed = [task for task, items in self._waiting.items() if items and self._running[task] < self.max_per_task]
        if not allowed:
            return None
        task = min(allowed, key=lambda task: self._running[task])
        item = self._waiting[task].popleft()
        self._running[task] += 1
        self._waiting.move_to_end(task)
        return task, item

    def done(self, task: str) -> None:
        self._running[task] -= 1
        self._forget_if_idle(task)

    def _forget_if_idle(self, task: str) -> None:
        if not self._running[task] and not self._waiting.get(task):
            self._waiting.pop(task, None)
            del self._running[task]
