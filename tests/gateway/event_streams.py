"""Server-sent events, as a client reads them."""

from collections.abc import AsyncGenerator

import httpx

STREAM = {"Accept": "text/event-stream"}


class Stream:
    """Server-sent events as they come."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.aiter_lines()
        self.comments = 0

    async def __aiter__(self) -> AsyncGenerator[dict[str, str]]:
        event: dict[str, str] = {}
        async for line in self._lines:
            if line.startswith(":"):
                self.comments += 1
            elif line:
                name, _, value = line.partition(": ")
                event[name] = value
            elif event:
                yield event
                event = {}
