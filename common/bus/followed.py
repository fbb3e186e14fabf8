"""Current values of a bucket: followed, and reread periodically."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import structlog
from nats.errors import Error as NatsError

from common.bus.bus import Bus
from common.errors import MarlaasError
from common.messages import Message

REREAD_S = 30.0
"""Seconds between readings of the whole bucket: a bucket that lost entries, or was recreated, reports no change."""
AGAIN_S = 1.0
"""Seconds before the bucket is followed again."""
UNREACHABLE = (MarlaasError, NatsError, TimeoutError, OSError)
M = TypeVar("M", bound=Message)

log = structlog.get_logger()


def _ignored(_: str, __: object) -> None:
    pass


class FollowedBucket(Generic[M]):
    """Latest known values by key; unchanged while NATS is unavailable. Requires a running `follow`."""

    def __init__(
        self, bus: Bus, bucket: str, model: type[M], changed: Callable[[str, M | None], None] = _ignored, *, reread_s: float = REREAD_S
    ) -> None:
        """`changed`: called with each new or changed value, and with None for a deleted one."""
        self._bus = bus
        self._bucket = bucket
        self._model = model
        self._changed = changed
        self._reread_s = reread_s
        self._known: dict[str, M] = {}
        self._is_read = False
        self._obstacle: str | None = None
        self._notified: set[str] = set()
        """Keys whose changes were reported since the last reading of the bucket began: the reported values are newer."""

    @property
    def known(self) -> Mapping[str, M]:
        return self._known

    @property
    def is_current(self) -> bool:
        """Whether a key that is unknown here is certainly missing in the bucket: it was read, and NATS is connected."""
        return self._is_read and self._bus.is_connected

    async def read(self) -> None:
        """Read the whole bucket; waits until NATS answers. Raises: Undeclared if the key does not permit it."""
        await self._bus.retry_until_ready(self._read)

    async def follow(self) -> None:
        """Follow the bucket until cancelled. Raises: exceptions of `changed`."""
        while True:
            watching = asyncio.create_task(self._watch())
            try:
                while await self._reread():
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
            self._notified.add(key)
            self._set(key, value)

    async def _reread(self) -> bool:
        """Read the whole bucket; returns False if a change was not reported, so that a new watch of the bucket is needed."""
        was_read = self._is_read
        try:
            return not await self._read() or not was_read
        except UNREACHABLE as error:
            self._note(error)
            return True

    async def _read(self) -> set[str]:
        """Read the whole bucket; returns the keys whose changes were not reported."""
        self._notified.clear()
        stored = await self._bus.kv.entries(self._bucket, self._model)
        self._obstacle, self._is_read = None, True
        changed = {key for key in stored.keys() | self._known.keys() if stored.get(key) != self._known.get(key)} - self._notified
        for key in changed:
            self._set(key, stored.get(key))
        return changed

    def _note(self, error: Exception) -> None:
        """Log the cause that prevents reading, once."""
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
