"""Meter: the processor time of one request."""

import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any

FREE_S = 0.003
"""Processor seconds of an ordinary request, which requests a minute bound."""
FREE_S_PER_BYTE = 5e-9
"""The same of each byte of its body."""


class Meter:
    """Awaits a coroutine, and adds up the time of its steps: what other tasks do meanwhile is not in it."""

    def __init__(self, work: Awaitable[None], clock_s: Callable[[], float] = time.thread_time) -> None:
        """`Any`: whatever the loop and the coroutine say to each other."""
        self._work = work
        self._clock_s = clock_s
        self._spent_s = 0.0
        self._began_s = 0.0

    @property
    def spent_s(self) -> float:
        """Up to now; to be asked by the coroutine itself."""
        return self._spent_s + self._clock_s() - self._began_s

    def beyond_free_s(self, body_bytes: int) -> float:
        """Of what it has spent, what is charged."""
        return max(0.0, self.spent_s - FREE_S - FREE_S_PER_BYTE * body_bytes)

    def __await__(self) -> Generator[Any, Any, None]:
        steps, thrown = self._work.__await__(), None
        while True:
            self._began_s = self._clock_s()
            try:
                waited_for = steps.send(None) if thrown is None else steps.throw(thrown)
            except StopIteration:
                return
            finally:
                self._spent_s += self._clock_s() - self._began_s
            try:
                thrown = yield waited_for
            except BaseException as error:
                thrown = error
