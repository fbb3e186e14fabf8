"""NATS's clock, for times that several services must agree on: a host's own clock may be wrong, or jump."""

import asyncio
import json
import time
from contextlib import suppress
from datetime import datetime

from nats.errors import Error as NatsError

from common.bus.transport.connection import Connection
from common.streams import STREAMS


class Clock:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._timings = connection.timings
        self._ahead_s = time.time() - time.monotonic()
        """NATS's clock minus this process's monotonic clock, in seconds; based on this host's clock until NATS's was read."""

    def now_s(self) -> float:
        """Unix time by NATS's clock, the same for all services; it does not jump with this host's clock."""
        return time.monotonic() + self._ahead_s

    async def sync(self) -> None:
        """Synchronize with NATS's clock until cancelled; while NATS is unavailable, the last reading counts."""
        while True:
            await asyncio.sleep(self._timings.clock_every_s)
            with suppress(TimeoutError, NatsError, OSError):
                await self._read(self._timings.max_clock_read_s)

    async def read(self) -> None:
        """Take the first reading, in at most three attempts. The last attempt accepts a slow and so inexact answer, which is still better
        than this host's clock."""
        limit_s = self._timings.max_clock_read_s
        for max_s in (limit_s, limit_s, self._timings.answer_timeout_s):
            if await self._connection.retry_until_ready(lambda max_s=max_s: self._read(max_s)):
                break

    async def _read(self, max_s: float) -> bool:
        """Read NATS's clock; False if the answer took longer than `max_s`, and is too inexact."""
        asked = time.monotonic()
        request = self._connection.client.request(f"$JS.API.STREAM.INFO.{STREAMS[0].name}", timeout=self._timings.answer_timeout_s)
        answer = json.loads((await request).data)
        answered = time.monotonic()
        if answered - asked > max_s or "ts" not in answer:
            return False
        self._ahead_s = datetime.fromisoformat(answer["ts"]).timestamp() - (asked + answered) / 2
        return True
