"""Seconds for which the learner's thread computed, by task."""

import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from common.accelerators.executable import Served

SMOOTHING = 0.3
"""Weight of the newest operation in the expected seconds a token."""
OVERRUN = 0.1
"""Share of its time so far that an operation is expected to take longer, at least. A drain's limit is ten times what is expected."""


class ServiceMeter:
    """Counts in the learner's thread, read in any. What runs is counted up to the moment of reading."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._shares: Mapping[str, float] = {}
        """Share of each task in the operation in progress; empty while there is none."""
        self._began_s = self._counted_s = 0.0
        self._by_task = dict[str, float]()
        self._busy_s = 0.0
        self._pieces = 0
        self._tokens = 0
        """Of the operation in progress."""
        self._token_s: float | None = None
        """Expected seconds a token; None before the first step has ended."""

    @contextmanager
    def computing(self, tokens: Mapping[str, int], pieces: int = 0) -> Generator[None]:
        """Context of one operation for these tasks, which share its time by their tokens. `pieces`: steps that end with it."""
        total = sum(tokens.values())
        with self._lock:
            self._began_s = self._counted_s = self._now_s()
            self._tokens = max(1, total)
            self._shares = {task: count / total if total else 1 / len(tokens) for task, count in tokens.items()}
        try:
            yield
        finally:
            with self._lock:
                self._count()
                self._shares = {}
                self._pieces += pieces
                if pieces:
                    token_s = (self._counted_s - self._began_s) / self._tokens
                    self._token_s = token_s if self._token_s is None else self._token_s + SMOOTHING * (token_s - self._token_s)

    def taken(self) -> Served:
        """What was done since the last call. A task's rest below a millisecond is kept for the next."""
        with self._lock:
            if self._shares:
                self._count()
            whole = {task: int(1000 * seconds) for task, seconds in self._by_task.items()}
            self._by_task = {task: seconds - whole[task] / 1000 for task, seconds in self._by_task.items()}
            found = Served({task: ms for task, ms in whole.items() if ms}, self._busy_s, self._pieces)
            self._busy_s, self._pieces = 0.0, 0
            return found

    @property
    def is_computing(self) -> bool:
        return bool(self._shares)

    @property
    def operations(self) -> int:
        """Tasks' operations in progress; those of a shared step are several."""
        return len(self._shares)

    @property
    def left_s(self) -> float | None:
        """Expected seconds until the operation in progress ends, by its tokens; None where there is none, or no step has ended before."""
        with self._lock:
            if not self._shares or self._token_s is None:
                return None
            passed_s = self._now_s() - self._began_s
            return max(self._tokens * self._token_s - passed_s, OVERRUN * passed_s)

    def _count(self) -> None:
        now_s = self._now_s()
        elapsed_s, self._counted_s = now_s - self._counted_s, now_s
        self._busy_s += elapsed_s
        for task, share in self._shares.items():
            self._by_task[task] = self._by_task.get(task, 0.0) + elapsed_s * share
