"""Live events: a stream of server-sent events, which reconnects."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import httpx2

from common.client_api.errors import ClientError, NoAnswer, TooManyJobs
from common.messages import Event
from marlaas.over_http.connection import PAUSE, Connection, Params
from marlaas.over_http.refusals import refusal

MAX_WAITING = 1_000
"""Maximum events that wait for a reader; then the stream waits for it."""
HEADERS = {"Accept": "text/event-stream"}


class LiveEvents:
    """What `HttpDoor.listening` gives."""

    def __init__(self, connection: Connection, params: Params) -> None:
        self._connection = connection
        self._params = params
        self._found = asyncio.Queue[Event | ClientError | None](MAX_WAITING)
        """None: it is connected again, and events may have been lost meanwhile."""
        self._begun = asyncio.Event()

    @asynccontextmanager
    async def read(self) -> AsyncGenerator["LiveEvents"]:
        """Read it beside the block, in which no event is missed unseen. Raises: ClientError when it is refused; NoAnswer."""
        reader = asyncio.create_task(self._read())
        try:
            await self._begin()
            yield self
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def next(self, timeout_s: float) -> Event | None:
        """None when none comes for so long, or some may have been lost. Raises: ClientError when the stream is refused."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                found = await self._found.get()
                if isinstance(found, ClientError):
                    self._found.put_nowait(found)
                    raise found
                return found
        return None

    async def _begin(self) -> None:
        try:
            async with asyncio.timeout(self._connection.patience_s + 1):
                await self._begun.wait()
        except TimeoutError:
            raise NoAnswer(f"the gateway at {self._connection.shown} sends no events") from None
        if not self._found.empty() and isinstance(refused := self._found.get_nowait(), ClientError):
            raise refused

    async def _read(self) -> None:
        attempt = 0
        while True:
            try:
                async for event in self._once():
                    attempt = 0
                    await self._found.put(event)
            except (NoAnswer, TooManyJobs):
                pass
            except ClientError as error:
                await self._found.put(error)
                self._begun.set()
                return
            attempt += 1
            await asyncio.sleep(PAUSE.pause_s(attempt))

    async def _once(self) -> AsyncGenerator[Event | None]:
        """Events until the stream ends. Raises: ClientError; NoAnswer."""
        async with self._connection.stream("GET", "/v1/events", self._params, headers=HEADERS) as response:
            async for sent in httpx2.EventSource(response, max_event_size=None):
                if sent.event == "listening":
                    if self._begun.is_set():
                        yield None
                    self._begun.set()
                elif sent.event == "error":
                    found = json.loads(sent.data)
                    raise refusal(int(found["status"]), sent.data.encode(), self._connection.shown, has_key=True)
                else:
                    yield Event.model_validate_json(sent.data)
