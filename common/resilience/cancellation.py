"""Cancellations that a library has lost, or has made up.

Until Python 3.11, `asyncio.wait_for` returns the result, and forgets the cancellation, when both arrive in one turn of the
event loop. nats-py and psycopg wait that way, so on a busy machine a loop around them would sometimes never end.
Loops that run until cancelled check here.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def notice_cancellation() -> None:
    """Raises: CancelledError when the current runner was cancelled and has not ended."""
    runner = asyncio.current_task()
    if runner is not None and runner.cancelling():
        raise asyncio.CancelledError


async def apart(work: Coroutine[Any, Any, T]) -> T:
    """Result of `work`, in a runner of its own, which ends with this one.

    Until Python 3.12, a TaskGroup that ends because one of its runners has failed leaves the runner around it marked as cancelled. A loop
    that begins another such group would then end at its next `notice_cancellation`.
    """
    runner = asyncio.ensure_future(work)
    try:
        return await runner
    finally:
        runner.cancel()
