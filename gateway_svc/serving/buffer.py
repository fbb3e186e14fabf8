"""Deltas between the replica that sends them and a client that may read slowly."""

import asyncio
from collections import deque

from common.messages import ServedDelta

MAX_BUFFERED_BYTES = 256 * 1024
"""Bytes that a client may leave unread."""
DELTA_BYTES = 64
"""Size of a delta without content."""


class Buffer:
    def __init__(self, max_bytes: int = MAX_BUFFERED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._deltas: deque[tuple[ServedDelta, int]] = deque()
        """With their sizes."""
        self._bytes = 0
        self._woken = asyncio.Event()
        self.is_over = False
        """The client has left too much unread: what there was is dropped."""

    def put(self, delta: ServedDelta) -> None:
        size = size_of(delta)
        self._deltas.append((delta, size))
        self._bytes += size
        if self._bytes > self._max_bytes:
            self.is_over = True
            self._deltas.clear()
        self.wake()

    def take(self) -> ServedDelta | None:
        if not self._deltas:
            return None
        delta, size = self._deltas.popleft()
        self._bytes -= size
        return delta

    def wake(self) -> None:
        self._woken.set()

    async def wait(self) -> None:
        """Until something happens. Without a timer, which would cost as much as all else that is done for a delta."""
        await self._woken.wait()
        self._woken.clear()


def size_of(delta: ServedDelta) -> int:
    """About as many bytes as the client is sent."""
    tokens = sum(DELTA_BYTES * (1 + len(token.top)) for token in delta.tokens)
    calls = sum(len(call.name) + len(call.arguments) for call in delta.calls)
    return DELTA_BYTES + len(delta.ids) + len(delta.text.encode()) + len(delta.reasoning.encode()) + tokens + calls
