"""Seconds for which the learner's thread computed, by task and by function."""

import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from common.accelerators.executors import Function, WorkDone

SMOOTHING = 0.3
"""Weight of the newest operation in the expected seconds per token."""
OVERRUN = 0.1
"""Minimum expected remaining time of an operation, as a fraction of its time so far. A drain's limit is ten times the expected time."""


@dataclass(frozen=True)
class Planned:
    """Tokens that an operation passes through the model, by function, counted once per pass."""

    train: int = 0
    score: int = 0
    """Tokens of passes without a gradient. A canary's few tokens are ignored."""

    def __add__(self, other: "Planned") -> "Planned":
        return Planned(self.train + other.train, self.score + other.score)


class ServiceMeter:
    """Service time by task and function. Counted in the learner's thread, read from any; includes the running operation up to the read."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._shares: Mapping[str, float] = {}
        """Share of each task in the operation in progress; empty while there is none."""
        self._is_scoring = False
        self._began_s = self._counted_s = 0.0
        self._scored_s = 0.0
        """Seconds of the operation in progress spent in passes without a gradient."""
        self._by_task = dict[str, float]()
        self._busy_s = self._score_s = 0.0
        self._pieces = 0
        self._planned = Planned()
        """Tokens of the operation in progress."""
        self._token_s: dict[Function, float] = {}
        """Expected seconds per token, by function; absent for functions never measured."""

    @contextmanager
    def computing(self, tokens: Mapping[str, int], planned: Planned | None = None, *, pieces: int = 0) -> Generator[None]:
        """Context of one operation for these tasks, which share its time by their tokens.

        `planned`: None for one training pass over the tokens. `pieces`: number of steps that end with the operation.
        """
        total = sum(tokens.values())
        with self._lock:
            self._began_s = self._counted_s = self._now_s()
            self._scored_s = 0.0
            self._planned = planned or Planned(total)
            self._shares = {task: count / total if total else 1 / len(tokens) for task, count in tokens.items()}
        try:
            yield
        finally:
            with self._lock:
                self._count()
                self._shares = {}
                self._pieces += pieces
                if pieces:
                    self._learn(Function.TRAIN, self._counted_s - self._began_s - self._scored_s, max(1, self._planned.train))
                    self._learn(Function.SCORE, self._scored_s, self._planned.score)

    @contextmanager
    def scoring(self) -> Generator[None]:
        """Context, within that of an operation, for passes without a gradient."""
        self._turn(True)
        try:
            yield
        finally:
            self._turn(False)

    def taken(self) -> WorkDone:
        """Work done since the last call. Fractions of a millisecond are carried over per task."""
        with self._lock:
            if self._shares:
                self._count()
            whole = {task: int(1000 * seconds) for task, seconds in self._by_task.items()}
            self._by_task = {task: seconds - whole[task] / 1000 for task, seconds in self._by_task.items()}
            found = WorkDone({task: ms for task, ms in whole.items() if ms}, self._busy_s, self._pieces, self._score_s)
            self._busy_s, self._score_s, self._pieces = 0.0, 0.0, 0
            return found

    @property
    def running(self) -> Function | None:
        """Function computed now; None if no operation is in progress."""
        if not self._shares:
            return None
        return Function.SCORE if self._is_scoring else Function.TRAIN

    @property
    def operations(self) -> int:
        """Number of tasks in the operation in progress; a shared step counts once per task."""
        return len(self._shares)

    @property
    def left_s(self) -> float | None:
        """Expected seconds until the operation in progress ends, by its tokens; None if there is none, or no step has ended yet.

        Before any scoring was measured, a pass without a gradient is expected to take as long as one with it.
        """
        with self._lock:
            train_s = self._token_s.get(Function.TRAIN)
            if not self._shares or train_s is None:
                return None
            passed_s = self._now_s() - self._began_s
            expected_s = self._planned.train * train_s + self._planned.score * self._token_s.get(Function.SCORE, train_s)
            return max(expected_s - passed_s, OVERRUN * passed_s)

    def _turn(self, is_scoring: bool) -> None:
        with self._lock:
            if self._shares:
                self._count()
            self._is_scoring = is_scoring

    def _learn(self, function: Function, seconds: float, tokens: int) -> None:
        if tokens:
            token_s = seconds / tokens
            known_s = self._token_s.get(function, token_s)
            self._token_s[function] = known_s + SMOOTHING * (token_s - known_s)

    def _count(self) -> None:
        now_s = self._now_s()
        elapsed_s, self._counted_s = now_s - self._counted_s, now_s
        self._busy_s += elapsed_s
        if self._is_scoring:
            self._score_s += elapsed_s
            self._scored_s += elapsed_s
        for task, share in self._shares.items():
            self._by_task[task] = self._by_task.get(task, 0.0) + elapsed_s * share
