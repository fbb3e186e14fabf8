"""Periodic work of one runner."""

import asyncio
from collections.abc import Awaitable, Callable


async def run_periodically(
    work: Callable[[], Awaitable[object]], every_s: float, failed: Callable[[Exception], None], *, at_once: bool = False
) -> None:
    """Await `work`, pause `every_s`, and repeat until cancelled; the first round is `at_once` or after a pause.

    `failed` reports an error of a round; the next round is the retry.
    """
    if not at_once:
        await asyncio.sleep(every_s)
    while True:
        try:
            await work()
        except Exception as error:
            failed(error)
        await asyncio.sleep(every_s)
