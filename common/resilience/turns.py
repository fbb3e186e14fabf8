"""Turns of the event loop for work that takes long: two of them in one would hold up everybody twice as long."""

import asyncio

LARGE_BYTES = 65_536
"""Size of a body from which its reading, or its check, has a turn of its own."""


class _Waiting:
    count = 0


async def own_turn(size: int = LARGE_BYTES) -> None:
    """Returns in a turn in which no other caller's work begins; at once for what is small.

    Each waits one turn more than those before it, so that all who wait have turns of their own.
    """
    if size < LARGE_BYTES:
        return
    turns = _Waiting.count = _Waiting.count + 1
    try:
        for _ in range(turns):
            await asyncio.sleep(0)
    finally:
        _Waiting.count -= 1
