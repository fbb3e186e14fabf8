"""Bounded caches that evict the least recently used value."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

FAILURE_TTL_S = 5.0
"""Seconds for which a failure is cached: otherwise a hundred messages that need an unavailable server would try it one after another."""


class LRUCache(Generic[K, V]):
    """LRU cache of at most `max_size` values."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Value of `key`, constructed at first use."""
        value = self._values[key] if key in self._values else make()
        self.put(key, value)
        return value

    def put(self, key: K, value: V) -> V | None:
        """Set the value of `key`; returns the value that it replaces or evicts, or None."""
        earlier = self._values.pop(key, None)
        self._values[key] = value
        if len(self._values) > self._max_size:
            return self._values.popitem(last=False)[1]
        return earlier

    def peek(self, key: K) -> V | None:
        """Value of `key` if it is cached, else None."""
        return self._values.get(key)

    def pop(self, key: K) -> V | None:
        """Remove `key`; returns its value if it was cached."""
        return self._values.pop(key, None)

    def clear(self) -> list[V]:
        """Remove all values; returns them."""
        values, self._values = list(self._values.values()), OrderedDict()
        return values


class SingleFlightCache(Generic[K, V]):
    """LRU cache of at most `max_size` values, each constructed once by its own asyncio task, which survives a cancelled caller."""

    def __init__(
        self,
        max_size: int,
        on_evict: Callable[[V], None] | None = None,
        now_s: Callable[[], float] = time.monotonic,
        *,
        keeps_failures: bool = True,
    ) -> None:
        """`on_evict`: called with each evicted value. `now_s`: any monotonic clock. `keeps_failures`: cache failures for FAILURE_TTL_S."""
        self._max_size = max_size
        self._on_evict = on_evict
        self._now_s = now_s
        self._keeps_failures = keeps_failures
        self._makers: OrderedDict[K, asyncio.Task[V]] = OrderedDict()
        self._failed_at: dict[K, float] = {}

    async def get(self, key: K, make: Callable[[], Awaitable[V]]) -> V:
        """Value of `key`, constructed by `make` at first use; a new value evicts the least recently used. Raises: exceptions of `make`."""
        failed_at = self._failed_at.get(key)
        if failed_at is not None and self._now_s() - failed_at > FAILURE_TTL_S:
            self._forget(key)
        maker = self._makers.get(key)
        if maker is None:
            maker = self._makers[key] = asyncio.create_task(_made(make))
            maker.add_done_callback(lambda _: self._done(key, maker))
        self._makers.move_to_end(key)
        return maker.result() if maker.done() else await asyncio.shield(maker)

    def peek(self, key: K) -> V | None:
        """Value of `key` if it has been constructed, else None; counts as a use."""
        maker = self._makers.get(key)
        if maker is None or not maker.done() or key in self._failed_at or maker.cancelled():
            return None
        self._makers.move_to_end(key)
        return maker.result()

    async def close(self) -> list[V]:
        """Cancel unfinished constructions; returns all values."""
        makers, self._makers = list(self._makers.values()), OrderedDict()
        self._failed_at.clear()
        for maker in makers:
            maker.cancel()
        await asyncio.gather(*makers, return_exceptions=True)
        return [maker.result() for maker in makers if not maker.cancelled() and maker.exception() is None]

    def _done(self, key: K, maker: "asyncio.Task[V]") -> None:
        if self._makers.get(key) is not maker:
            return
        if maker.cancelled() or (maker.exception() is not None and not self._keeps_failures):
            self._forget(key)
        elif maker.exception() is not None:
            self._failed_at[key] = self._now_s()
        made = [one for one, maker in self._makers.items() if maker.done()]
        for one in made[: max(0, len(made) - self._max_size)]:
            self._forget(one)

    def _forget(self, key: K) -> None:
        maker = self._makers.pop(key)
        self._failed_at.pop(key, None)
        if self._on_evict is not None and not maker.cancelled() and maker.exception() is None:
            self._on_evict(maker.result())


async def _made(make: Callable[[], Awaitable[V]]) -> V:
    return await make()
