"""Downloads that the audit has a row of, so that their further parts need no statement about it."""

import time
from collections.abc import Callable

from common.caches import LRUCache

REMEMBERED_S = 60.0
"""Seconds for which a row is taken to be there: a restored database may have lost it."""
MAX_DOWNLOADS = 4096

Download = tuple[str, str]
"""The asker's public key, and the adapter's name."""


class Downloads:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recorded: LRUCache[Download, float] = LRUCache(MAX_DOWNLOADS)

    def are_recorded(self, download: Download) -> bool:
        return self._clock() < (self._recorded.peek(download) or 0.0)

    def record(self, download: Download) -> None:
        """Once its row is committed."""
        self._recorded.put(download, self._clock() + REMEMBERED_S)
