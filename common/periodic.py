"""Work that a service repeats until it ends."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from common.bus import NatsError
from common.errors import Fatal, MarlaasError

log = structlog.get_logger()


async def run_forever(work: Callable[[], Awaitable[object]], pause_s: float, event: str, *, pauses_first: bool = False) -> None:
    """Await `work`, pause for `pause_s`, and repeat until cancelled. An error is logged as `event`; the next round is the retry. Raises:
    Fatal."""
    if pauses_first:
        await asyncio.sleep(pause_s)
    while True:
        try:
            await work()
        except Fatal:
            raise
        except Exception as error:
            log_failed(event, error)
        await asyncio.sleep(pause_s)


def log_failed(event: str, error: Exception) -> None:
    """Log that a round has failed, with a traceback for an unexpected error. Such errors are caught too: one task's bad rows must not stop
    later rounds."""
    if isinstance(error, MarlaasError | NatsError | TimeoutError | OSError):
        log.warning(event, error=str(error) or type(error).__name__)
    else:
        log.exception(event, error=f"{type(error).__name__}: {error}")
