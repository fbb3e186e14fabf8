"""This process: CPU affinity of its threads, and the times of cyclic garbage collection, which stops the event loop."""

import asyncio
import gc
import os
from collections.abc import Callable, Collection, Set
from contextlib import suppress
from pathlib import Path

THREADS = Path("/proc/self/task")


def pin(cores: Collection[int]) -> None:
    """Pin this thread, and threads that it starts later, to `cores`, unless empty. Raises: OSError."""
    if cores:
        os.sched_setaffinity(0, cores)


def leave(*choices: Collection[int], but: Set[int] = frozenset()) -> bool:
    """Move this process's threads, except `but`, off some cores: off the first set in `choices` without which this thread has cores left.

    Threads started later inherit this. Returns False, without any change, if every set includes all of this thread's cores.
    """
    before = os.sched_getaffinity(0)
    others = next((left for cores in choices if (left := before.difference(cores))), None)
    if others is None:
        return False
    for thread in thread_ids() - but:
        with suppress(ProcessLookupError):  # the thread has ended
            os.sched_setaffinity(thread, others)
    return True


def thread_ids() -> set[int]:
    """Kernel ids of this process's threads."""
    return {int(path.name) for path in THREADS.iterdir()}


YOUNG_OBJECTS = 10_000
"""New containers between two collections of the youngest generation; Python's default of 700 accumulates within a few messages."""
OLDER = 10
"""Collections of one generation between two of the next."""
NEVER = 2**30
REST_S = 60.0
"""Seconds between checks whether the process is idle."""
MAX_SKIPPED = 10
"""Successive checks that find the process busy, after which a full collection runs at the next check even if it is still busy."""


def collect_rarely() -> None:
    """Collect garbage less often, and exempt existing objects: a full collection of everything imported and built at the
    start stops the event loop for up to half a second.
    """
    gc.set_threshold(YOUNG_OBJECTS)
    gc.collect()
    gc.freeze()


async def collect_at_rest(is_at_rest: Callable[[], bool], every_s: float = REST_S) -> None:
    """Run full collections while the process is idle, until cancelled: with objects of many connections, one takes 100 ms and more."""
    gc.set_threshold(YOUNG_OBJECTS, OLDER, NEVER)
    skipped = 0
    try:
        while True:
            await asyncio.sleep(every_s)
            if is_at_rest() or skipped >= MAX_SKIPPED:
                gc.collect()
                skipped = 0
            else:
                skipped += 1
    finally:
        gc.set_threshold(YOUNG_OBJECTS, OLDER, OLDER)
