"""Server-sent events, and other work, which end when the client disconnects, its key ends, or the gateway stops."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from common.formats.strict_json import on_one_line
from gateway_svc.access import Caller
from gateway_svc.http.errors import as_problem
from gateway_svc.http.gateway import Drain
from gateway_svc.problems import Problem, unauthorized

COMMENT_EVERY_S = 15.0
"""Seconds without an event after which a comment is sent: proxies keep the connection open, and a disconnected client is noticed."""
SEND_S = 30.0
"""Maximum seconds for a client to receive a write before it counts as disconnected; checked when a comment would be due."""
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
DRAINING = Problem(503, "Unavailable", "this replica ends; connect again", "draining")

log = structlog.get_logger()
T = TypeVar("T")
GONE = 499
"""Logged status of a request whose client disconnected; no client reads that answer."""


@dataclass(frozen=True)
class Sse:
    """One server-sent event."""

    data: str
    """JSON on one line, or a plain word."""
    event: str | None = None
    id: str | None = None

    def encode(self) -> bytes:
        lines = [f"event: {self.event}"] if self.event is not None else []
        lines += [f"id: {self.id}"] if self.id is not None else []
        lines += [f"data: {on_one_line(line)}" for line in self.data.split("\n")]
        return "\n".join([*lines, "", ""]).encode()


def error_event(problem: Problem) -> Sse:
    """Event for an error that ends a stream."""
    return Sse(json.dumps({"status": problem.status, "code": problem.code, "detail": problem.detail}), event="error")


@dataclass(frozen=True)
class Ends:
    """Events that end a stream besides its own last event."""

    caller: Caller
    drain: Drain
    is_resumable: bool
    """Whether a disconnected client can continue on another replica: the stream then ends as soon as the gateway begins to drain."""

    def events(self) -> list[tuple[asyncio.Event, Problem]]:
        drain = self.drain.began if self.is_resumable else self.drain.overdue
        return [(drain, DRAINING), (self.caller.ended, unauthorized())]


class EventStream(Response):
    """Sends the events that a generator yields.

    The generator starts and is closed while the response is sent, so its resources are released even if the client disconnects.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[Sse],
        ends: Ends,
        *,
        error: Callable[[Problem], Sse] = error_event,
        headers: Mapping[str, str] | None = None,
        comment_every_s: float = COMMENT_EVERY_S,
    ) -> None:
        super().__init__(headers={**HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._events = events
        self._ends = ends
        self._error = error
        self._comment_every_s = comment_every_s
        self._sent_at = time.monotonic()
        self._sending_since: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        pump = asyncio.create_task(self._pump(send))
        gone = asyncio.create_task(_disconnection(receive))
        ends = {asyncio.create_task(_set(event)): problem for event, problem in self._ends.events()}
        try:
            await self._watch(pump, gone, ends, send)
        finally:
            runners = [pump, gone, *ends]
            for runner in runners:
                runner.cancel()
            await asyncio.gather(*runners, return_exceptions=True)

    async def _watch(
        self, pump: asyncio.Task[None], gone: asyncio.Task[None], ends: Mapping[asyncio.Task[None], Problem], send: Send
    ) -> None:
        """Send comments until `pump` ends, the client is gone, or one of `ends` occurs. Raises: TimeoutError if it receives no data."""
        while not (gone.done() or pump.done()):
            done, _ = await asyncio.wait({pump, gone, *ends}, timeout=self._comment_every_s, return_when=asyncio.FIRST_COMPLETED)
            if (problem := next((ends[end] for end in done if end in ends), None)) is not None and not pump.done():
                pump.cancel()
                await asyncio.gather(pump, return_exceptions=True)
                await self._send_in_time(send, self._error(problem).encode())
            elif self._sending_since is not None:
                if time.monotonic() - self._sending_since >= SEND_S:
                    raise TimeoutError("the client takes nothing")
            elif not done and time.monotonic() - self._sent_at >= self._comment_every_s:
                await self._send_in_time(send, b":\n\n")
        if not gone.done():
            if not pump.cancelled():
                pump.result()
            await self._send_in_time(send, b"", more=False)

    async def _pump(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            try:
                async for event in events:
                    await self._send(send, event.encode())
            except Exception as error:
                problem = as_problem(error)
                if problem is None:
                    log.error("stream_crashed", exc_info=error)
                    problem = Problem(500, "Internal error", "the gateway's log has the reason", "internal")
                await self._send(send, self._error(problem).encode())

    async def _send(self, send: Send, body: bytes) -> None:
        """Send without a timer, which would cost as much as the sending: `_watch` checks the time."""
        self._sent_at = self._sending_since = time.monotonic()
        await send({"type": "http.response.body", "body": body, "more_body": True})
        self._sending_since = None

    async def _send_in_time(self, send: Send, body: bytes, *, more: bool = True) -> None:
        """Send within SEND_S seconds. Raises: TimeoutError if the client does not receive it."""
        async with asyncio.timeout(SEND_S):
            await send({"type": "http.response.body", "body": body, "more_body": more})
        self._sent_at = time.monotonic()


async def _set(event: asyncio.Event) -> None:
    await event.wait()


async def _disconnection(receive: Receive) -> None:
    """Wait until the client disconnects; the body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(request: Request, ends: Ends, work: Coroutine[Any, Any, T]) -> T:
    """Result of `work`, which is cancelled if the client disconnects, its key ends, or the gateway stops. Raises: Problem; as `work`."""
    doing = asyncio.create_task(work)
    gone = Problem(GONE, "Client closed the request", "the client has gone", "client_gone")
    stops = {asyncio.create_task(_disconnection(request.receive)): gone}
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
