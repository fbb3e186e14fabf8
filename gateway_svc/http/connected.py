"""Work that is of no use once the client has gone."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from gateway_svc.http.event_stream import Ends
from gateway_svc.problems import Problem

T = TypeVar("T")
GONE = 499
"""Status in the log of a request whose client has gone; nobody reads the answer."""


async def while_connected(request: Request, ends: Ends, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client goes, its key ends, or the gateway does. Raises: Problem; as `work`."""
    doing = asyncio.create_task(work)
    gone = Problem(GONE, "Client closed the request", "the client has gone", "client_gone")
    stops = {asyncio.create_task(_gone(request)): gone}
    stops |= {asyncio.create_task(_set(event)): problem for event, problem in ends.events()}
    try:
        done, _ = await asyncio.wait({doing, *stops}, return_when=asyncio.FIRST_COMPLETED)
        if doing in done:
            return doing.result()
        raise next(problem for stop, problem in stops.items() if stop in done)
    finally:
        runners: list[asyncio.Task[Any]] = [doing, *stops]
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)


async def _gone(request: Request) -> None:
    """Returns when the client has gone; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _set(event: asyncio.Event) -> None:
    await event.wait()
