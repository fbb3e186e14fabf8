"""Cancellations that a library loses.

Until Python 3.12, `asyncio.wait_for` returns the result, and forgets the cancellation, when both arrive in one turn of the event loop.
nats-py and psycopg wait that way, and nats-py swallows one while it writes, so on a busy machine a loop around them would sometimes never
end. The doors to both check here (`common/bus`, `scheduler_svc/base/database.py`); own code uses `asyncio.timeout`, which loses none.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def cancellation_kept() -> Generator[None]:
    """Raises: CancelledError at the end of the block if its runner was cancelled inside it, whatever the block did with that.

    Earlier cancellations do not count: a runner that cleans up after one may call the library, and until Python 3.12 a TaskGroup that ends
    by an error of its runners leaves the runner around it marked as cancelled.
    """
    runner = asyncio.current_task()
    before = runner.cancelling() if runner is not None else 0
    try:
        yield
    finally:
        if runner is not None and runner.cancelling() > before:
            raise asyncio.CancelledError
