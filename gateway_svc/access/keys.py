"""HTTP keys that are valid, from the bucket that the scheduler keeps."""

import time
from collections.abc import Callable

from common.bus import REREAD_S, Bus, FollowedBucket
from common.errors import Unavailable
from common.messages import HttpKey
from common.streams import HTTP_KEYS_BUCKET


class HttpKeys:
    """Latest known HTTP keys, by the digest of their text. While NATS is away they stay as they were."""

    def __init__(self, bus: Bus, *, clock: Callable[[], float] = time.time, reread_s: float = REREAD_S) -> None:
        """`clock`: Unix time."""
        self._clock = clock
        self._removed: Callable[[str], None] = lambda _: None
        self._followed = FollowedBucket(bus, HTTP_KEYS_BUCKET, HttpKey, self._note, reread_s=reread_s)

    def on_removal(self, call: Callable[[str], None]) -> None:
        """`call` gets the digest of each key that is revoked, or whose tenant is suspended or deleted."""
        self._removed = call

    def _note(self, digest: str, key: HttpKey | None) -> None:
        if key is None:
            self._removed(digest)

    def find(self, digest: str) -> HttpKey | None:
        """None for one that is unknown, revoked or ended. Raises: Unavailable when it may be known to NATS only, which is away."""
        found = self._followed.known.get(digest)
        if found is None and not self._followed.is_current:
            raise Unavailable("NATS does not answer, which has the keys")
        return None if found is None or self.has_ended(found) else found

    def has_ended(self, key: HttpKey) -> bool:
        return key.ends is not None and key.ends.timestamp() <= self._clock()

    async def follow(self) -> None:
        """Follow the bucket until cancelled."""
        await self._followed.follow()
