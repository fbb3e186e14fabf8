"""Gate before a trainer's slots: closed while the trainer is parked; counts the batches before and behind it."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from common.errors import HandedBack
from trainer_svc.learner import PARKED


class Gate:
    def __init__(self) -> None:
        self.is_closed = False
        self._has_others = False
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.waiting = 0
        """Batches waiting before the gate."""
        self.behind = 0
        """Batches being read, trained, published or announced."""
        self.publishing = 0
        """Batches among `behind` whose step was computed, and whose version is being stored or announced."""

    def close(self) -> None:
        self.is_closed = True

    def open(self) -> None:
        self.is_closed = False
        self._notify()

    def note_others(self, have: bool) -> None:
        """Set whether other live trainers of the pool may take the batches that wait here while this one is parked."""
        self._has_others = have
        self._notify()

    async def passed(self) -> None:
        """Wait until the gate is open. Raises: HandedBack if another trainer can take the batch."""
        self.waiting += 1
        try:
            while self.is_closed:
                if self._has_others:
                    raise HandedBack(PARKED)
                await self._changed.wait()
        finally:
            self.waiting -= 1

    @contextmanager
    def one_behind(self) -> Generator[None]:
        self.behind += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.behind -= 1
            if not self.behind:
                self._idle.set()

    @contextmanager
    def one_published(self) -> Generator[None]:
        self.publishing += 1
        try:
            yield
        finally:
            self.publishing -= 1

    async def idle(self, within_s: float | None) -> bool:
        """Wait until no batch is behind the gate; False if some still are after `within_s` seconds (None: no limit)."""
        try:
            async with asyncio.timeout(within_s):
                while self.behind:
                    await self._idle.wait()
            return True
        except TimeoutError:
            return False

    def _notify(self) -> None:
        """Wake all waiting batches to re-check the gate."""
        self._changed.set()
        self._changed = asyncio.Event()
