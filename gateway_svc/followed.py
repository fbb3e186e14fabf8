"""Values of a bucket as they are now: followed, and reread periodically."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from common.bus import Bus, NatsError
from common.errors import MarlaasError
from common.messages import Message

REREAD_S = 30.0
"""Interval of readings of the whole bucket: one that lost entries, or was made again, tells no change of them."""
AGAIN_S = 1.0
"""Pause before the bucket is followed anew."""
M = TypeVar("M", bound=Message)

log = structlog.get_logger()


@dataclass(frozen=True)
class Reading(Generic[M]):
    """How a bucket is read."""

    values: Callable[[], Awaitable[list[M]]]
    changes: Callable[[], AsyncIterator[tuple[str, M | None]]]
    """Every entry, then every change; None when deleted."""


class FollowedBucket(Generic[M]):
    """Latest known values by key. While NATS is away they stay as they were. `follow` must run."""

    def __init__(self, bus: Bus, bucket: Reading[M], key_of: Callable[[M], str], *, unread: str, reread_s: float = REREAD_S) -> None:
        """`unread`: event that is logged when the bucket cannot be read."""
        self._bus = bus
        self._bucket = bucket
        self._key_of = key_of
        self._unread = unread
        self._reread_s = reread_s
        self._known: dict[str, M] = {}
        self._is_read = False
        self._obstacle: str | None = None
        self._told: set[str] = set()
        """Keys of changes since the last reading began: they are newer than what it finds."""
        self.removed: Callable[[str], None] = lambda _: None
        """Called with the key of each value that is gone."""

    @property
    def known(self) -> Mapping[str, M]:
        return self._known

    @property
    def is_current(self) -> bool:
        """Whether what is not known is not there."""
        return self._is_read and self._bus.is_connected

    async def follow(self) -> None:
        """Follow the bucket until cancelled."""
        while True:
            watching = asyncio.create_task(self._watch())
            try:
                while await self._was_told():
                    await asyncio.wait([watching], timeout=self._reread_s)
                    if watching.done():
                        break
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            await asyncio.sleep(AGAIN_S)

    async def _watch(self) -> None:
        async for key, value in self._bucket.changes():
            self._told.add(key)
            self._set(key, value)

    async def _was_told(self) -> bool:
        """Read the whole bucket; False where it has changed without a word, so that it must be followed anew."""
        self._told.clear()
        try:
            stored = {self._key_of(value): value for value in await self._bucket.values()}
        except (MarlaasError, NatsError, TimeoutError, OSError) as error:
            self._note(str(error) or type(error).__name__)
            return True
        self._obstacle = None
        was_read, self._is_read = self._is_read, True
        changed = {key for key in stored.keys() | self._known.keys() if stored.get(key) != self._known.get(key)} - self._told
        for key in changed:
            self._set(key, stored.get(key))
        return not changed or not was_read

    def _note(self, obstacle: str) -> None:
        """Log what prevents reading, once."""
        if obstacle != self._obstacle:
            log.warning(self._unread, error=obstacle)
        self._obstacle = obstacle

    def _set(self, key: str, value: M | None) -> None:
        if value is not None and self._key_of(value) == key:
            self._known[key] = value
        elif self._known.pop(key, None) is not None:
            self.removed(key)
