"""What tells a page that its data changed. It says nothing else: the page reads again, so that nothing is missed or shown twice."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Query, Response

from common.client_api.asking import Door
from common.spec import TASK_ID_PATTERN
from gateway_svc.http.dashboard.route import PageRoute
from gateway_svc.http.dashboard.visitor import Filtered
from gateway_svc.http.event_stream import Ends, EventStream, Sse
from gateway_svc.http.gateway import gateway_of

SPACING_S = 1.0
"""Minimum seconds between two updates of a page."""
REFRESH_S = 20.0
"""Seconds without an event after which a page reads again: not everything that it shows has events."""
TaskName = Annotated[str, Query(pattern=rf"^$|{TASK_ID_PATTERN}")]
NEWS = Sse("", event="news")

router = APIRouter(route_class=PageRoute)


@router.get("/live")
async def live(visitor: Filtered, task: TaskName = "") -> Response:
    """One event immediately, since the page may be older than the stream, and one after each change, of one task or of all."""
    caller = visitor.caller
    ends = Ends(caller, gateway_of(visitor.request).drain, is_resumable=True)
    return EventStream(_news(caller.door, caller.tenant, task or None), ends)


async def _news(door: Door, tenant: str | None, task: str | None) -> AsyncGenerator[Sse]:
    async with door.listening(tenant, task) as events:
        while True:
            yield NEWS
            await asyncio.sleep(SPACING_S)
            await door.next_event(events, REFRESH_S)
            while await door.next_event(events, 0.05) is not None:
                pass
