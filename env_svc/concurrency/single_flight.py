"""Single-flight LRU cache for expensive async construction."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

FAILURE_TTL_S = 5.0
"""Time for which a failure is cached, so that a hundred messages waiting for an unavailable server do not retry in turn."""


class SingleFlightCache(Generic[K, V]):
    """LRU cache of at most `max_size` values, each constructed once by an asyncio task of its own, which outlives a cancelled caller."""

    def __init__(self, max_size: int, on_evict: Callable[[V], None] | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        """`on_evict` is called with each evicted value. `now_s`: any monotonic clock."""
        self._max_size = max_size
        self._on_evict = on_evict
        self._now_s = now_s
        self._makers: OrderedDict[K, asyncio.Task[V]] = OrderedDict()
        self._failed_at: dict[K, float] = {}

    async def get(self, key: K, make: Callable[[], Awaitable[V]]) -> V:
        """The value of `key`; a new one evicts the least recently used. Raises: what `make` raised."""
        failed_at = self._failed_at.get(key)
        if failed_at is not None and self._now_s() - failed_at > FAILURE_TTL_S:
            self._forget(key)
        maker = self._makers.get(key)
        if maker is None:
            maker = self._makers[key] = asyncio.create_task(_made(make))
            maker.add_done_callback(lambda _: self._done(key, maker))
        self._makers.move_to_end(key)
        return maker.result() if maker.done() else await asyncio.shield(maker)

    async def close(self) -> list[V]:
        """Cancel unfinished constructions, and return all values."""
        makers, self._makers = list(self._makers.values()), OrderedDict()
        self._failed_at.clear()
        for maker in makers:
            maker.cancel()
        await asyncio.gather(*makers, return_exceptions=True)
        return [maker.result() for maker in makers if not maker.cancelled() and maker.exception() is None]

    def _done(self, key: K, maker: "asyncio.Task[V]") -> None:
        if self._makers.get(key) is not maker:
            return
        if maker.cancelled():
            self._forget(key)
        elif maker.exception() is not None:
            self._failed_at[key] = self._now_s()
        made = [one for one, maker in self._makers.items() if maker.done()]
        for one in made[: max(0, len(made) - self._max_size)]:
            self._forget(one)

    def _forget(self, key: K) -> None:
        maker = self._makers.pop(key)
        has_failed = self._failed_at.pop(key, None) is not None or maker.cancelled()
        if self._on_evict is not None and not has_failed:
            self._on_evict(maker.result())


async def _made(make: Callable[[], Awaitable[V]]) -> V:
    return await make()
