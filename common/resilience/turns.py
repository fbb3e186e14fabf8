"""Turns of the event loop for work that takes long: others' go before it, and two such works in one turn would hold up everybody twice."""

import asyncio

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
