"""Heartbeats for messages in flight, sent by a thread on a connection of its own.

A handler may block the event loop for longer than a lease lasts (a garbage collection, a large checkpoint, a busy machine).
Its messages must not go to another replica then, but must do so soon after this process has died. So leases are short
and the heartbeats do not need the event loop. A process whose event loop has been blocked for STALLED_S counts as hung: its
heartbeats stop, and other replicas take over its messages.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

STALLED_S = 30.0
"""Seconds for which the event loop may be blocked before the process counts as hung."""
IN_PROGRESS = b"+WPI"
"""JetStream's "in progress" answer, which renews a message's lease."""
RECONNECT_S = 0.5
CLOSE_TIMEOUT_S = 1.0
STOP_TIMEOUT_S = 3.0

log = structlog.get_logger()


@dataclass
class _Lease:
    every_s: float
    due: float
    """Monotonic time of the next heartbeat."""


class Heartbeats:
    """Keeps the leases of messages alive, identified by their reply subjects. All methods may be called from any thread."""

    def __init__(self, connect: Callable[[], Awaitable[Client]], clock: Callable[[], float] = time.monotonic) -> None:
        """`connect` is called on the thread's own event loop, and retried after NATS's errors."""
        self._connect = connect
        self._clock = clock
        self._leases: dict[str, _Lease] = {}
        self._lock = threading.Lock()
        self._min_interval_s = 1.0
        self._turned = self._clock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: asyncio.Task[None] | None = None
        self._client: Client | None = None

    @property
    def is_connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    def start(self, every_s: float) -> None:
        """Start the thread if necessary, to serve leases that need a heartbeat every `every_s` seconds; called once per kind of lease."""
        self._min_interval_s = min(self._min_interval_s, every_s)
        if self._thread is None:
            self._loop = asyncio.new_event_loop()
            self._running = self._loop.create_task(self._run())
            self._thread = threading.Thread(target=self._work, args=[self._loop, self._running], name="heartbeats", daemon=True)
            self._thread.start()

    async def stop(self) -> None:
        """Stop the thread and close its connection."""
        if self._thread is not None and self._loop is not None and self._running is not None:
            with suppress(RuntimeError):  # the loop is closed: the thread has ended
                self._loop.call_soon_threadsafe(self._running.cancel)
            await asyncio.to_thread(self._thread.join, STOP_TIMEOUT_S)

    def turned(self) -> None:
        """Record that the event loop whose handlers hold the messages is alive."""
        self._turned = self._clock()

    def hold(self, reply: str, every_s: float) -> None:
        with self._lock:
            self._leases[reply] = _Lease(every_s, self._clock() + every_s)

    def release(self, reply: str) -> None:
        with self._lock:
            self._leases.pop(reply, None)

    def due(self) -> list[str]:
        """Reply subjects whose heartbeat is due, each of which gets a new due time; none while the event loop counts as hung."""
        now = self._clock()
        if now - self._turned > STALLED_S:
            return []
        with self._lock:
            found = [reply for reply, lease in self._leases.items() if lease.due <= now]
            for reply in found:
                self._leases[reply].due = now + self._leases[reply].every_s
        return found

    def _work(self, loop: asyncio.AbstractEventLoop, running: asyncio.Task[None]) -> None:
        try:
            with suppress(asyncio.CancelledError):
                loop.run_until_complete(running)
        finally:
            loop.close()

    async def _run(self) -> None:
        client = self._client = await self._connected()
        try:
            while True:
                await asyncio.sleep(self._min_interval_s / 2)
                if client.is_connected:
                    await beat(client, self.due())
        finally:
            with suppress(TimeoutError, OSError, NatsError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await client.close()

    async def _connected(self) -> Client:
        while True:
            try:
                return await self._connect()
            except (TimeoutError, OSError, NatsError) as error:
                log.warning("heartbeats_unreachable", error=str(error) or type(error).__name__)
                await asyncio.sleep(RECONNECT_S)


async def beat(client: Client, replies: list[str]) -> None:
    """Renew the leases of the messages with these reply subjects."""
    with suppress(OSError, NatsError):
        for reply in replies:
            await client.publish(reply, IN_PROGRESS)
