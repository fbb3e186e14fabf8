"""HTTP keys that are valid, from the bucket that the scheduler keeps."""

import asyncio
import time
from collections.abc import Callable

import structlog

from common.bus import Bus, NatsError
from common.errors import Unavailable
from common.messages import HttpKey
from common.streams import HTTP_KEYS_BUCKET

REREAD_S = 30.0
"""Interval of readings of the whole bucket: one that lost entries, or was made again, tells no change of them."""
AGAIN_S = 1.0
"""Pause before the bucket is followed anew."""

log = structlog.get_logger()


class HttpKeys:
    """Latest known HTTP keys, by the digest of their text. While NATS is away they stay as they were."""

    def __init__(self, bus: Bus, *, clock: Callable[[], float] = time.time, reread_s: float = REREAD_S) -> None:
        """`clock`: Unix time."""
        self._bus = bus
        self._clock = clock
        self._reread_s = reread_s
        self._known: dict[str, HttpKey] = {}
        self._is_read = False
        self._told: set[str] = set()
        """Digests of changes since the last reading began: they are newer than what it finds."""
        self.removed: Callable[[str], None] = lambda _: None
        """Called with the digest of each key that is revoked, or whose tenant is suspended or deleted."""

    def find(self, digest: str) -> HttpKey | None:
        """None for one that is unknown, revoked or ended. Raises: Unavailable when it may be known to NATS only, which is away."""
        found = self._known.get(digest)
        if found is None and not (self._is_read and self._bus.is_connected):
            raise Unavailable("NATS does not answer, which has the keys")
        return None if found is None or self.has_ended(found) else found

    def has_ended(self, key: HttpKey) -> bool:
        return key.ends is not None and key.ends.timestamp() <= self._clock()

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
        async for digest, key in self._bus.kv.watch(HTTP_KEYS_BUCKET, HttpKey):
            self._told.add(digest)
            self._set(digest, key)

    async def _was_told(self) -> bool:
        """Read the whole bucket; False where it has changed without a word, so that it must be followed anew."""
        self._told.clear()
        try:
            stored = {key.digest: key for key in await self._bus.kv.values(HTTP_KEYS_BUCKET, HttpKey)}
        except (Unavailable, NatsError, TimeoutError, OSError) as error:
            log.warning("http_keys_not_read", error=str(error) or type(error).__name__)
            return True
        was_read, self._is_read = self._is_read, True
        changed = {digest for digest in stored.keys() | self._known.keys() if stored.get(digest) != self._known.get(digest)} - self._told
        for digest in changed:
            self._set(digest, stored.get(digest))
        return not changed or not was_read

    def _set(self, digest: str, key: HttpKey | None) -> None:
        if key is not None and key.digest == digest:
            self._known[digest] = key
        elif self._known.pop(digest, None) is not None:
            self.removed(digest)
