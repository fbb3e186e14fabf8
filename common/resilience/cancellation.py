"""Cancellations that a library has lost.

Until Python 3.11, `asyncio.wait_for` returns the result, and forgets the cancellation, when both arrive in one turn of the
event loop. nats-py and psycopg wait that way, so on a busy machine a loop around them would sometimes never end.
Loops that run until cancelled check here.
"""

import asyncio


def notice_cancellation() -> None:
    """Raises: CancelledError when the current runner was cancelled and has not ended."""
    runner = asyncio.current_task()
    if runner is not None and runner.cancelling():
        raise asyncio.CancelledError
