"""The event loop: turns for work that takes long, tasks beside their caller, and cancellations that a library loses.

Other work goes before what takes long, and two such works in one turn would hold up everything else twice.
"""

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any

LARGE_BYTES = 65_536
"""Size of a body from which its reading, or its check, has a turn of its own."""
QUIET_S = 0.0002
"""Seconds that a turn takes at most in which the loop had next to nothing to do."""
MAX_WAIT_S = 0.25
"""Maximum seconds that work waits for such a turn; a loop may have none."""


class _Taken:
    by: asyncio.AbstractEventLoop | None = None
    """The event loop in whose current turn a caller's work runs."""

    @classmethod
    def end(cls) -> None:
        cls.by = None


async def own_turn(size: int = LARGE_BYTES) -> None:
    """Returns in a turn in which no other caller's work begins, once the loop is nearly idle. Returns immediately if `size` is small."""
    if size < LARGE_BYTES:
        return
    loop = asyncio.get_running_loop()
    now_s = loop.time()
    until_s, is_quiet = now_s + MAX_WAIT_S, False
    while _Taken.by is loop or not is_quiet:
        began_s = now_s
        await asyncio.sleep(0)
        now_s = loop.time()
        is_quiet = now_s - began_s < QUIET_S or now_s > until_s
    _Taken.by = loop
    loop.call_soon(_Taken.end)


class TaskSet(set[asyncio.Task[None]]):
    """Tasks that run; each leaves the set when it is done."""

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work`."""
        return self.hold(asyncio.create_task(work))

    def hold(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """Keep a task until it is done."""
        self.add(task)
        task.add_done_callback(self.discard)
        return task


# Until Python 3.12, `asyncio.wait_for` returns the result, and forgets the cancellation, when both arrive in one turn of the event loop.
# nats-py and psycopg wait that way, and nats-py swallows one while it writes, so on a busy machine a loop around them would sometimes never
# end. The doors to both check here (`common/bus`, `scheduler_svc/base/database.py`); own code uses `asyncio.timeout`, which loses none.
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
