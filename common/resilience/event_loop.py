"""Event-loop helpers: turns for long work, background tasks, and cancellations that a library loses.

Long work waits for a turn of its own: short work has priority, and two long pieces of work in one turn would delay everything else twice.
"""

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any

LARGE_BYTES = 65_536
"""Minimum bytes of a body whose parsing or checking gets a turn of its own."""
QUIET_S = 0.0002
"""Maximum seconds of a turn in which the loop counts as idle."""
MAX_WAIT_S = 0.25
"""Maximum seconds to wait for an idle turn; a loop may have none."""


class _Taken:
    by: asyncio.AbstractEventLoop | None = None
    """The event loop whose current turn is taken by a caller's work."""

    @classmethod
    def end(cls) -> None:
        cls.by = None


async def own_turn(size: int = LARGE_BYTES) -> None:
    """Wait for a turn of a nearly idle loop in which no other caller's work starts. Returns immediately if `size` is small."""
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
    """Running tasks; each leaves the set when it is done."""

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task for `work`, and keep it until it is done."""
        return self.hold(asyncio.create_task(work))

    def hold(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """Keep a task until it is done."""
        self.add(task)
        task.add_done_callback(self.discard)
        return task


async def is_set_within(event: asyncio.Event, time_s: float | None) -> bool:
    """Wait until `event` is set, at most `time_s` seconds (None: no limit); returns whether it was set in time."""
    try:
        async with asyncio.timeout(time_s):
            return await event.wait()
    except TimeoutError:
        return False


# Until Python 3.12, `asyncio.wait_for` returns the result, and forgets the cancellation, if both arrive in one turn of the event loop.
# nats-py and psycopg wait that way, and nats-py swallows one while it writes, so on a busy machine a loop around them would sometimes never
# end. The wrappers of both check here (`common/bus`, `scheduler_svc/base/database.py`); own code uses `asyncio.timeout`, which loses none.
@contextmanager
def cancellation_kept() -> Generator[None]:
    """Raises: CancelledError at the end of the block if its task was cancelled inside it, even if the block swallowed the cancellation.

    Earlier cancellations do not count: a task that cleans up after one may call the library, and until Python 3.12 a TaskGroup that ends
    with an error of its children leaves the parent task marked as cancelled.
    """
    runner = asyncio.current_task()
    before = runner.cancelling() if runner is not None else 0
    try:
        yield
    finally:
        if runner is not None and runner.cancelling() > before:
            raise asyncio.CancelledError
