"""Downloads that the audit has a row of, so that their further parts need no statement about it."""

import time
from collections import OrderedDict
from collections.abc import Callable

REMEMBERED_S = 60.0
"""Seconds for which a row is taken to be there: a restored database may have lost it."""
MAX_DOWNLOADS = 4096

Download = tuple[str, str]
"""The asker's public key, and the adapter's name."""


class Downloads:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recorded: OrderedDict[Download, float] = OrderedDict()

    def are_recorded(self, download: Download) -> bool:
        return self._clock() < self._recorded.get(download, 0.0)

    def record(self, download: Download) -> None:
        """Once its row is committed."""
        self._recorded[download] = self._clock() + REMEMBERED_S
        self._recorded.move_to_end(download)
        if len(self._recorded) > MAX_DOWNLOADS:
            self._recorded.popitem(last=False)
