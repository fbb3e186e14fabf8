"""Processor cores that this process's threads run on."""

import os
from collections.abc import Collection, Set
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
