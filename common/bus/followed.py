"""Values of a bucket as they are now: followed, and reread periodically."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import structlog
from nats.errors import Error as NatsError

from common.bus.bus import Bus
from common.errors import MarlaasError
from common.messages import Message

REREAD_S = 30.0
"""Interval of readings of the whole bucket: one that lost entries, or was made again, tells no change of them."""
AGAIN_S = 1.0
"""Pause before the bucket is followed anew."""
UNREACHABLE = (MarlaasError, NatsError, TimeoutError, OSError)
M = TypeVar("M", bound=Message)

log = structlog.get_logger()


def _ignored(_: str, __: object) -> None:
    pass


class FollowedBucket(Generic[M]):
    """Latest known values by key. While NATS is away they stay as they were. `follow` must run."""

    def __init__(
        self, bus: Bus, bucket: str, model: type[M], changed: Callable[[str, M | None], None] = _ignored, *, reread_s: float = REREAD_S
    ) -> None:
        """`changed`: called with each value that is new or another than before, and with None for one that is gone."""
        self._bus = bus
        self._bucket = bucket
        self._model = model
        self._changed = changed
        self._reread_s = reread_s
        self._known: dict[str, M] = {}
        self._is_read = False
        self._obstacle: str | None = None
        self._told: set[str] = set()
        """Keys of changes since the last reading began: they are newer than what it finds."""

    @property
    def known(self) -> Mapping[str, M]:
        return self._known

    @property
    def is_current(self) -> bool:
        """Whether what is not known is not there."""
        return self._is_read and self._bus.is_connected

    async def read(self) -> None:
        """Read the whole bucket; waits until NATS answers. Raises: Undeclared when the key does not permit it."""
        await self._bus.retry_until_ready(self._read)

    async def follow(self) -> None:
        """Follow the bucket until cancelled. Raises: what `changed` raises."""
        while True:
            watching = asyncio.create_task(self._watch())
            try:
                while await self._was_told():
                    await asyncio.wait([watching], timeout=self._reread_s)
                    if watching.done():
                        watching.result()
                        break
            except UNREACHABLE as error:
                self._note(error)
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            await asyncio.sleep(AGAIN_S)

    async def _watch(self) -> None:
        async for key, value in self._bus.kv.watch(self._bucket, self._model):
            self._told.add(key)
            self._set(key, value)

    async def _was_told(self) -> bool:
        """Read the whole bucket; False where it has changed without a word, so that it must be followed anew."""
        was_read = self._is_read
        try:
            return not await self._read() or not was_read
        except UNREACHABLE as error:
            self._note(error)
            return True

    async def _read(self) -> set[str]:
        """Keys that have changed without a word."""
        self._told.clear()
        stored = await self._bus.kv.entries(self._bucket, self._model)
        self._obstacle, self._is_read = None, True
        changed = {key for key in stored.keys() | self._known.keys() if stored.get(key) != self._known.get(key)} - self._told
        for key in changed:
            self._set(key, stored.get(key))
        return changed

    def _note(self, error: Exception) -> None:
        """Log what prevents reading, once."""
        obstacle = str(error) or type(error).__name__
        if obstacle != self._obstacle:
            log.warning("bucket_not_read", bucket=self._bucket, error=obstacle)
        self._obstacle = obstacle

    def _set(self, key: str, value: M | None) -> None:
        if value == self._known.get(key):
            return
        if value is None:
            del self._known[key]
        else:
            self._known[key] = value
        self._changed(key, value)
