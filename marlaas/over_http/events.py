"""Live events: a stream of server-sent events, continued where it broke off."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import httpx2

from common.door.asking import UnknownHere
from common.door.errors import ClientError, NoAnswer, TooManyJobs
from common.messages import Event
from marlaas.over_http.connection import PAUSE, Connection, Params
from marlaas.over_http.questions import event_of
from marlaas.over_http.refusals import refusal

MAX_WAITING = 1_000
"""Events that are held for a reader; then the stream waits for it."""


class LiveEvents:
    """What `HttpDoor.listening` gives."""

    def __init__(self, connection: Connection, path: str, params: Params, number: int | None) -> None:
        """`number`: of the last event that is not wanted; None for a stream that cannot be resumed."""
        self._connection = connection
        self._path = path
        self._params = params
        self._number = number
        self._found = asyncio.Queue[Event | ClientError](MAX_WAITING)
        self._begun = asyncio.Event()

    @asynccontextmanager
    async def read(self) -> AsyncGenerator["LiveEvents"]:
        """Read it beside the block. Raises: ClientError when it is refused at once."""
        reader = asyncio.create_task(self._read())
        try:
            if self._number is None:  # there is no asking later for what came before
                await self._begin()
            yield self
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def next(self, timeout_s: float) -> Event | None:
        """None when none comes for so long. Raises: ClientError, when the stream is refused."""
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
            except (NoAnswer, TooManyJobs, UnknownHere):  # it is away, or no scheduler has the task yet
                pass
            except ClientError as error:
                await self._found.put(error)
                self._begun.set()
                return
            attempt += 1
            await asyncio.sleep(PAUSE.pause_s(attempt))

    async def _once(self) -> AsyncGenerator[Event]:
        """Events until the stream ends. Raises: ClientError; NoAnswer."""
        headers = {"Accept": "text/event-stream"} | ({} if self._number is None else {"Last-Event-ID": str(self._number)})
        async with self._connection.stream("GET", self._path, self._params, headers=headers) as response:
            async for sent in httpx2.EventSource(response, max_event_size=None):
                if sent.event == "listening":
                    self._begun.set()
                elif sent.event == "error":
                    found = json.loads(sent.data)
                    raise refusal(int(found["status"]), sent.data.encode(), self._connection.shown, has_key=True)
                else:
                    event = event_of(json.loads(sent.data))
                    if self._number is not None:
                        self._number = max(self._number, event.number or 0)
                    yield event
