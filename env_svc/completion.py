"""Yields results of concurrent work as they become ready, batched if ready at the same moment. No task outlives its caller."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def as_completed_batches(work: Iterable[Coroutine[Any, Any, T]]) -> AsyncGenerator[list[T], None]:
    """Lists of results of `work` as they become ready, each in the order of `work`. Closing it cancels the rest: use `aclosing`."""
    runners = [asyncio.ensure_future(one) for one in work]
    pending = set(runners)
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            yield [runner.result() for runner in runners if runner in done]
    finally:
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)


async def merge(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Items of all sources as they arrive. Closing the generator closes the sources: use `aclosing`."""
    waiting = {asyncio.ensure_future(anext(source)): source for source in sources}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                source = waiting.pop(one)
                try:
                    item = one.result()
                except StopAsyncIteration:
                    continue
                waiting[asyncio.ensure_future(anext(source))] = source
                yield item
    finally:
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for source in sources:
            await source.aclose()
