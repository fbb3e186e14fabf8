"""Values that are constructed once for many callers."""

import asyncio

import pytest

from common.caches import FAILURE_TTL_S, SingleFlightCache


class Workshop:
    """Makes one number for each request, once its gate opens."""

    def __init__(self) -> None:
        self.begun = 0
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def make(self) -> int:
        self.begun += 1
        number = self.begun
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return number


async def test_it_is_made_once_though_who_asked_first_no_longer_waits() -> None:
    workshop, once = Workshop(), SingleFlightCache[str, int](max_size=2)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await once.get("a", workshop.make)
    waiting = [asyncio.ensure_future(once.get("a", workshop.make)) for _ in range(3)]
    workshop.go.set()
    assert await asyncio.gather(*waiting) == [1, 1, 1]
    assert await once.get("a", workshop.make) == 1
    assert workshop.begun == 1


async def test_one_key_does_not_wait_for_another() -> None:
    hung, quick, once = Workshop(), Workshop(), SingleFlightCache[str, int](max_size=2)
    waiting = asyncio.ensure_future(once.get("hung", hung.make))
    quick.go.set()
    assert await once.get("quick", quick.make) == 1
    assert not waiting.done()
    assert await once.close() == [1]
    assert waiting.cancelled() or isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], asyncio.CancelledError)


async def test_failure_is_the_answer_for_a_while_and_then_it_is_retried() -> None:
    now_s = 100.0
    workshop, once = Workshop(), SingleFlightCache[str, int](max_size=2, now_s=lambda: now_s)
    workshop.go.set()
    workshop.error = ConnectionError("away")
    for _ in range(3):
        with pytest.raises(ConnectionError, match="away"):
            await once.get("a", workshop.make)
    assert workshop.begun == 1
    now_s += FAILURE_TTL_S + 0.1
    workshop.error = None
    assert await once.get("a", workshop.make) == 2


async def test_least_recently_used_value_is_evicted() -> None:
    gone: list[int] = []
    workshop, once = Workshop(), SingleFlightCache[str, int](max_size=2, on_evict=gone.append)
    workshop.go.set()
    for key in ("a", "b", "a", "c"):
        await once.get(key, workshop.make)
    assert gone == [2]
    assert await once.get("a", workshop.make) == 1
    assert sorted(await once.close()) == [1, 3]


async def test_peek_has_what_is_constructed_and_no_failure_and_counts_as_use() -> None:
    workshop, once = Workshop(), SingleFlightCache[str, int](max_size=2)
    waiting = asyncio.ensure_future(once.get("a", workshop.make))
    await asyncio.sleep(0)
    assert once.peek("a") is None and once.peek("none") is None
    workshop.go.set()
    assert await waiting == once.peek("a") == 1
    await once.get("b", workshop.make)
    assert once.peek("a") == 1
    await once.get("c", workshop.make)
    assert once.peek("a") == 1 and once.peek("b") is None
    workshop.error = ConnectionError("away")
    with pytest.raises(ConnectionError):
        await once.get("failed", workshop.make)
    assert once.peek("failed") is None
