"""Drain: the end of a gateway, which requests in flight take part in."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

LAST_S = 2.0
"""Seconds of the drain's time that are left for the last error events to be sent."""


class Drain:
    """Counts requests in flight, and ends them.

    `began`: new requests are refused, and streams that a client resumes elsewhere end. `overdue`: all others end with an error.
    """

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.overdue = asyncio.Event()
        self.in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def request(self) -> Generator[None]:
        """A request in flight."""
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if self.in_flight == 0:
                self._idle.set()

    async def finish(self, drain_s: float) -> None:
        """Wait until no request is in flight, for at most `drain_s` seconds."""
        self.began.set()
        last_s = min(LAST_S, drain_s / 2)
        if not await self._is_idle_within(drain_s - last_s):
            self.overdue.set()
            await self._is_idle_within(last_s)

    async def _is_idle_within(self, time_s: float) -> bool:
        try:
            async with asyncio.timeout(time_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
