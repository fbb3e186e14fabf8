"""Waiting for what another task or process does, without sleeping for a fixed time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from nats.errors import Error as NatsError

from common.errors import Unavailable

T = TypeVar("T")


@asynccontextmanager
async def at_work(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """`work` as a task of its own, cancelled at the end of the block."""
    runner = asyncio.create_task(work)
    try:
        yield runner
    finally:
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)


async def eventually(condition: object, timeout_s: float = 240.0) -> None:
    """Wait until `condition()` (plain or async) is true; a machine may be slow, and so may a server that is asked."""
    assert callable(condition)
    async with asyncio.timeout(timeout_s):
        while True:
            with suppress(Unavailable, NatsError, TimeoutError):
                result = condition()
                if asyncio.iscoroutine(result):
                    result = await result
                if result:
                    return
            await asyncio.sleep(0.02)


async def eventually_equals(asked: Callable[[], Awaitable[T]], expected: T, timeout_s: float = 240.0) -> None:
    """Wait until the answer equals `expected`."""

    async def equals() -> bool:
        return await asked() == expected

    await eventually(equals, timeout_s)
