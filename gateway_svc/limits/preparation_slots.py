"""Pacing: limits how many requests of one sender this process prepares concurrently.

An event loop gives every running request a part of each turn. If a thousand requests of one sender began together, another sender's request
would take as long as all of them, although each is cheap. So a few requests of each sender run, and the others wait after only their
headers were parsed. Preparation ends when a request waits for a sampler, when its answer begins, or after HOLD_S: a request that waits for
NATS or for its client costs the others nothing.
The processor time of a request's own steps is also measured until it is answered. The time beyond an ordinary request's
is charged to its sender, whose next requests wait until the sender's share of this process has paid for it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

MAX_CONCURRENT = 4
"""Maximum requests of one sender in preparation. A process cannot compute for all at once, but each also waits for NATS."""
HOLD_S = 0.05
"""Maximum seconds that a request delays the next one of its sender."""
SHARE = 0.1
"""Fraction of a process's time that one sender gets for costs beyond the free part."""
BURST_S = 1.0
"""Seconds whose share a sender may use in advance: BURST_S × SHARE processor seconds."""
MAX_WAIT_S = 10.0
"""Maximum seconds that a request waits for its sender's share; a request that would wait longer is refused."""
MAX_KNOWN = 1_000
FREE_S = 0.003
"""Processor seconds of an ordinary request, which are free: requests per minute are limited anyway."""
FREE_S_PER_BYTE = 5e-9
"""Free processor seconds per byte of the body."""


class TooBusy(Exception):
    """A sender used more processor time than a short wait can pay for."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"its requests have used the gateway's processor for {SHARE * wait_s:.1f} s more than their share")
        self.wait_s = wait_s


class PreparationSlots:
    """Preparation slots of one process."""

    def __init__(
        self, max_concurrent: int = MAX_CONCURRENT, hold_s: float = HOLD_S, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_concurrent = max_concurrent
        self._hold_s = hold_s
        self._monotonic_s = monotonic_s
        self._running: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._paid_s: dict[str, float] = {}
        """Sender → time at which its share has paid for its usage."""

    @property
    def senders(self) -> int:
        """Number of senders with requests in preparation."""
        return len(self._running)

    async def begin(self, sender: str) -> "PreparationSlot":
        """Wait for one of the sender's slots and for its share of processor time. Raises: TooBusy."""
        running = self._running.get(sender, 0)
        if running < self._max_concurrent:
            self._running[sender] = running + 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(sender, deque()).append(turn)
            try:
                await turn  # the request that leaves the slot hands it over
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._leave(sender)
                raise
        try:
            while (wait_s := self._wait_s(sender)) > 0:
                if wait_s > MAX_WAIT_S:
                    raise TooBusy(wait_s)
                await asyncio.sleep(wait_s)
        except BaseException:
            self._leave(sender)
            raise
        return PreparationSlot(partial(self._leave, sender), partial(self.charge, sender), self._hold_s)

    def charge(self, sender: str, processor_s: float) -> None:
        """Delay the sender's later requests until its share has paid for `processor_s`, which excludes the free part."""
        now_s = self._monotonic_s()
        if len(self._paid_s) >= MAX_KNOWN:
            self._paid_s = {one: paid_s for one, paid_s in self._paid_s.items() if paid_s > now_s}
        self._paid_s[sender] = max(now_s, self._paid_s.get(sender, 0.0)) + processor_s / SHARE

    def _wait_s(self, sender: str) -> float:
        return self._paid_s.get(sender, 0.0) - self._monotonic_s() - BURST_S

    def _leave(self, sender: str) -> None:
        """Hand the slot over to the sender's next waiting request."""
        waiting = self._waiting.get(sender)
        while waiting:
            turn = waiting.popleft()
            if not waiting:
                del self._waiting[sender]
            if not turn.done():
                turn.set_result(None)
                return
        self._running[sender] -= 1
        if not self._running[sender]:
            del self._running[sender]


class PreparationSlot:
    """Slot of one request, released after `hold_s` unless it is kept."""

    def __init__(self, left: Callable[[], None], charge: Callable[[float], None], hold_s: float) -> None:
        """`charge`: charges processor seconds to the sender."""
        self._left = left
        self._is_left = False
        self._overdue = asyncio.get_running_loop().call_later(hold_s, self.leave)
        self.charge = charge

    def keep(self) -> None:
        """Keep the slot until the request is answered: the sender's next request waits that long."""
        self._overdue.cancel()

    def leave(self) -> None:
        """Release the slot for the sender's next request; repeated calls do nothing."""
        self._overdue.cancel()
        if not self._is_left:
            self._is_left = True
            self._left()


class Meter:
    """Awaits `work` and measures the processor time of its steps, without other tasks that run in between."""

    def __init__(self, work: Awaitable[None], clock_s: Callable[[], float] = time.thread_time) -> None:
        self._work = work
        self._clock_s = clock_s
        self._spent_s = 0.0
        self._began_s = 0.0

    @property
    def spent_s(self) -> float:
        """Seconds spent up to now; call it from the coroutine itself."""
        return self._spent_s + self._clock_s() - self._began_s

    def beyond_free_s(self, body_bytes: int) -> float:
        """Seconds to charge: the time spent beyond the free part."""
        return max(0.0, self.spent_s - FREE_S - FREE_S_PER_BYTE * body_bytes)

    def __await__(self) -> Generator[Any, Any, None]:
        """`Any`: values passed between event loop and coroutine."""
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
