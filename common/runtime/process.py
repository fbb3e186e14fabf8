"""This process: cores that its threads run on, and when cyclic garbage is collected, which stops the event loop."""

import asyncio
import gc
import os
from collections.abc import Callable, Collection, Set
from contextlib import suppress
from pathlib import Path

THREADS = Path("/proc/self/task")


def pin(cores: Collection[int]) -> None:
    """Pin this thread, and those that it starts, to the cores, if any are given. Raises: OSError."""
    if cores:
        os.sched_setaffinity(0, cores)


def leave(*choices: Collection[int], but: Set[int] = frozenset()) -> bool:
    """Move this process's threads, except `but` these, and so those that they start, off cores: the first choice that leaves it others.

    False, and nothing changes, where this thread has no other cores than each choice's.
    """
    before = os.sched_getaffinity(0)
    others = next((left for cores in choices if (left := before.difference(cores))), None)
    if others is None:
        return False
    for thread in thread_ids() - but:
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(thread, others)
    return True


def thread_ids() -> set[int]:
    """Threads of this process, by the kernel's number."""
    return {int(path.name) for path in THREADS.iterdir()}


YOUNG_OBJECTS = 10_000
"""New containers between two collections of the youngest; Python's own 700 accumulate within a few messages."""
OLDER = 10
"""Collections of one age between two of the next."""
NEVER = 2**30
REST_S = 60.0
"""Interval at which a process looks whether it is at rest."""
MAX_SKIPPED = 10
"""Looks after which everything is collected, at rest or not."""


def collect_rarely() -> None:
    """Collect garbage less often, and leave out the objects of now: a full collection of all that was imported and built at the
    start stops the event loop for up to half a second."""
    gc.set_threshold(YOUNG_OBJECTS)
    gc.collect()
    gc.freeze()


async def collect_at_rest(is_at_rest: Callable[[], bool], every_s: float = REST_S) -> None:
    """Full collections while the process is at rest, until cancelled: one that many connections keep objects for takes 100 ms and more."""
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
