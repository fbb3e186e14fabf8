"""Progress of one request over its attempts: received deltas, the sampling replica, gaps, and tokens delivered to the client.

An attempt belongs to the first replica that reports it. Deltas of other replicas, and of earlier attempts, are dropped, and the gateway
cancels the attempts that they came from. An attempt with a gap in its deltas, or with a silent replica, is lost, and the next one continues
after the tokens delivered to the client, so that no token is repeated or missing.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

from common.messages import ServedDelta

SILENT_S = 2.0
"""Seconds without a sign of life after which a replica counts as dead; replicas send one every ALIVE_S."""
MAX_BUFFERED_BYTES = 256 * 1024
"""Maximum bytes that a client may leave unread."""
DELTA_BYTES = 64
"""Bytes counted for a delta without content."""
ID_BYTES = 4


class Progress:
    def __init__(self) -> None:
        self.attempt = 0
        self.ids = b""
        """Token ids so far, (N,) int32."""
        self.replica: str | None = None
        """Replica that samples the attempt; None until it reports."""
        self.is_lost = False
        self._next = 0
        self._seen_s = 0.0
        self._has_begun = False

    def begin_next(self) -> None:
        """Start the next attempt."""
        self.attempt += 1
        self.replica, self.is_lost, self._next = None, False, 0

    def hear(self, replica: str, attempt: int, now_s: float) -> bool:
        """Record a sign of life of a replica; False if the replica should not sample this attempt."""
        if attempt != self.attempt or self.is_lost or self.replica not in (None, replica):
            return False
        self.replica, self._seen_s = replica, now_s
        return True

    def take(self, replica: str, delta: ServedDelta, now_s: float) -> ServedDelta | None:
        """The delta for the client; None if the delta is unwanted or repeated, or if one before it is missing, which sets `is_lost`."""
        if not self.hear(replica, delta.attempt, now_s) or delta.number < self._next:
            return None
        if delta.number > self._next or delta.failure == "engine_lost" or (delta.failure == "overdue" and self.ids):
            self.is_lost = True
            return None
        self._next += 1
        self.ids += delta.ids
        if self._has_begun and (delta.prompt_tokens is not None or delta.fingerprint):
            delta = delta.model_copy(update={"prompt_tokens": None, "fingerprint": ""})
        self._has_begun = True
        return delta

    def is_silent(self, now_s: float) -> bool:
        """Whether the attempt's replica counts as dead."""
        return self.replica is not None and now_s - self._seen_s > SILENT_S


class Buffer:
    def __init__(self) -> None:
        self._deltas: deque[tuple[ServedDelta, int]] = deque()
        """Unread deltas with their sizes in bytes."""
        self._bytes = 0
        self._woken = asyncio.Event()
        self.is_over = False
        """Whether the client left too much unread; the unread deltas were dropped."""

    def put(self, delta: ServedDelta) -> None:
        size = size_of(delta)
        self._deltas.append((delta, size))
        self._bytes += size
        if self._bytes > MAX_BUFFERED_BYTES:
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
        """Wait for a delta or a wake-up. Without a timer, which would cost as much as the rest of a delta's processing."""
        await self._woken.wait()
        self._woken.clear()


def size_of(delta: ServedDelta) -> int:
    """Approximate bytes that the client is sent."""
    tokens = sum(DELTA_BYTES * (1 + len(token.top)) for token in delta.tokens)
    calls = sum(len(call.name) + len(call.arguments) for call in delta.calls)
    return DELTA_BYTES + len(delta.ids) + len(delta.text.encode()) + len(delta.reasoning.encode()) + tokens + calls


@dataclass
class Given:
    prompt: int | None = None
    """Prompt tokens; None before the first delta."""
    cached: int = 0
    sampled: int = 0

    def add(self, delta: ServedDelta) -> None:
        """Add a delta's tokens; the prompt of later attempts is the same and counts once."""
        self.prompt = delta.prompt_tokens if self.prompt is None else self.prompt
        self.cached = delta.cached_tokens if delta.cached_tokens is not None else self.cached
        self.sampled += len(delta.ids) // ID_BYTES
