"""Pacing: how many requests of one sender this process prepares at once.

An event loop gives each request that runs a part of every turn. If all of a thousand requests of one sender began at once, another's would
take as long as all of them together, although each is cheap. So a few of each sender run, and the others wait, having cost only the parsing
of their headers. A request is prepared when it waits for a sampler, begins to be answered, or has had HOLD_S: what waits for NATS or for
its client costs the others nothing.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

AT_ONCE = 4
"""Requests of one sender that are prepared at once. More than a process has time for, as each waits for NATS now and then."""
HOLD_S = 0.05
"""Maximum seconds that a request keeps the next one of its sender waiting."""


class Pacing:
    """Of one process."""

    def __init__(self, at_once: int = AT_ONCE, hold_s: float = HOLD_S) -> None:
        self._at_once = at_once
        self._hold_s = hold_s
        self._running: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def senders(self) -> int:
        """Senders of requests that are prepared."""
        return len(self._running)

    async def begin(self, sender: str) -> "Place":
        """Waits for a place, of which a sender has as many as may be prepared at once."""
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
        return Place(partial(self._leave, sender), self._hold_s)

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


class Place:
    """Of one request, which leaves it after `hold_s` at the latest."""

    def __init__(self, left: Callable[[], None], hold_s: float) -> None:
        self._left = left
        self._overdue: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(hold_s, self.leave)

    def leave(self) -> None:
        """The next request of the sender begins; more calls do nothing."""
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
            self._left()
