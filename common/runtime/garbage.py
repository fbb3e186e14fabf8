"""When cyclic garbage is collected: a collection stops the event loop."""

import asyncio
import gc
from collections.abc import Callable

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
