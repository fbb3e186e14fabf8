"""Pacing: how many requests of one sender this process prepares concurrently.

An event loop gives each request that runs a part of every turn. If all of a thousand requests of one sender began together, another's would
take as long as all of them together, although each is cheap. So a few of each sender run, and the others wait, having cost only the parsing
of their headers. A request is prepared when it waits for a sampler, begins to be answered, or has had HOLD_S: what waits for NATS or for
its client costs the others nothing.

What a request costs is measured, too: the processor time of its own steps until it is answered. What it takes beyond an ordinary request's
is charged to its sender, whose next requests wait until its share of this process has paid for it."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

AT_ONCE = 4
"""Maximum requests of one sender that are prepared concurrently. More than a process has time for, since each also waits for NATS."""
HOLD_S = 0.05
"""Maximum seconds that a request keeps the next one of its sender waiting."""
SHARE = 0.1
"""Share of a process's time that one sender has for what its requests cost beyond the free part."""
BURST_S = 1.0
"""Seconds of the share that a sender may use ahead."""
MAX_WAIT_S = 10.0
"""Maximum seconds that a request waits for its sender's share; one that would wait longer is refused."""
MAX_KNOWN = 1_000
FREE_S = 0.003
"""Processor seconds of an ordinary request, which requests a minute bound."""
FREE_S_PER_BYTE = 5e-9
"""The same of each byte of its body."""


class TooBusy(Exception):
    """A sender has used more processor time than waiting makes good soon."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"its requests have used the gateway's processor for {SHARE * wait_s:.1f} s more than their share")
        self.wait_s = wait_s


class PreparationSlots:
    """Of one process."""

    def __init__(self, at_once: int = AT_ONCE, hold_s: float = HOLD_S, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._at_once = at_once
        self._hold_s = hold_s
        self._monotonic_s = monotonic_s
        self._running: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._paid_s: dict[str, float] = {}
        """Sender → when its share has paid for what it used."""

    @property
    def senders(self) -> int:
        """Senders of requests that are prepared."""
        return len(self._running)

    async def begin(self, sender: str) -> "PreparationSlot":
        """Waits for a place, of which a sender has as many as may be prepared concurrently, and for its share. Raises: TooBusy."""
        running = self._running.get(sender, 0)
        if running < self._at_once:
            self._running[sender] = running + 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(sender, deque()).append(turn)
            try:
                await turn  # its place is handed over by the request that leaves it
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
        """Have the sender's later requests wait until its share has paid for this. What an ordinary request takes is free."""
        now_s = self._monotonic_s()
        if len(self._paid_s) >= MAX_KNOWN:
            self._paid_s = {one: paid_s for one, paid_s in self._paid_s.items() if paid_s > now_s}
        self._paid_s[sender] = max(now_s, self._paid_s.get(sender, 0.0)) + processor_s / SHARE

    def _wait_s(self, sender: str) -> float:
        return self._paid_s.get(sender, 0.0) - self._monotonic_s() - BURST_S

    def _leave(self, sender: str) -> None:
        """Hand a place over to the next of the same sender that still waits."""
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
    """Of one request, which leaves it after `hold_s` at the latest, unless it keeps it."""

    def __init__(self, left: Callable[[], None], charge: Callable[[float], None], hold_s: float) -> None:
        """`charge`: has the sender pay for processor seconds."""
        self._left = left
        self._is_left = False
        self._overdue = asyncio.get_running_loop().call_later(hold_s, self.leave)
        self.charge = charge

    def keep(self) -> None:
        """However long it takes, the next request of the sender waits."""
        self._overdue.cancel()

    def leave(self) -> None:
        """The next request of the sender begins; more calls do nothing."""
        self._overdue.cancel()
        if not self._is_left:
            self._is_left = True
            self._left()


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
