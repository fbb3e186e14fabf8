"""Checks and limits for every request: its id, the limits of its body, its sender's pace, and the gateway's drain."""

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

import structlog
from fastapi.routing import APIRoute
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.bus import is_loopback
from gateway_svc.http.errors import Family, Render, as_problem, problem_json
from gateway_svc.http.gateway import READING, Gateway
from gateway_svc.limits.preparation_slots import Meter, PreparationSlot, PreparationSlots, TooBusy
from gateway_svc.limits.refusals import headers_of, too_busy
from gateway_svc.problems import Problem

MIN_RATE = 16 * 1024
"""Minimum average rate of a body, in bytes per second: its time limit is `timeout_s` plus the time that it takes at this rate."""
DISCARDED = 8 * 1024 * 1024
"""Maximum bytes of an oversized body that are read and discarded; DISCARD_S is the maximum seconds for it."""
DISCARD_S = 2.0
SHORT_BODY = 64 * 1024
"""Maximum size of a body that is read before its request begins: a slow body then blocks no other request of its sender."""
MALFORMED = 25
"""Factor on the processor time charged for a long body that its route rejects: correct clients send few such bodies."""
OVERDUE = "overdue"
"""Name of a sender that stands for all senders of overdue bodies, so that their error answers are paced together."""
HEALTH = ("/healthz", "/readyz")
_HOST = re.compile(r"^\[?(?P<name>[^\]]*?)\]?(:\d+)?$")

T = TypeVar("T")
log = structlog.get_logger()


class Guard:
    """The outermost ASGI application."""

    def __init__(self, app: ASGIApp, gateway: Gateway, families: list[Family], pacing: PreparationSlots | None = None) -> None:
        self._app = app
        self._gateway = gateway
        self._pacing = pacing or PreparationSlots()
        own = {head_of(route.path): family.render for family in families for route in family.router.routes if isinstance(route, APIRoute)}
        self._renders: Mapping[str, Render] = {**own, **{path: family.render for family in families for path in family.paths}}
        self._limits: Mapping[str, int] = {path: limit for family in families for path, limit in family.body_bytes.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request_id, headers = secrets.token_hex(12), Headers(scope=scope)
        scope.setdefault("state", {})["request_id"] = request_id
        body = _Body(receive, headers, self._limit(scope["path"]), self._gateway.settings.timeout_s, scope["state"])
        sent = _Sent(send, body, scope["state"])
        drain, is_health = self._gateway.drain, scope["path"] in HEALTH
        with structlog.contextvars.bound_contextvars(request=request_id), nullcontext() if is_health else drain.request():
            began = time.monotonic()
            try:
                self._check(scope, headers, is_health=is_health)
                body.check_announced()
                if not is_health:
                    await body.complete_if_short()
                    scope["state"]["place"] = sent.place = await self._pacing.begin(self._sender(scope, headers))
                sent.meter = Meter(self._app(scope, body, sent))
                await sent.meter
            except TooBusy as busy:
                await self._fail(too_busy(busy), scope, receive, sent)
            except Exception as error:
                await self._fail(error, scope, receive, sent)
            finally:
                sent.leave()
                if not is_health:
                    _log(scope, sent.status, time.monotonic() - began)

    def render(self, path: str, problem: Problem) -> Response:
        """Render a problem in the shape of the path's family."""
        return (_longest(self._renders, path) or problem_json)(problem)

    def _sender(self, scope: Scope, headers: Headers) -> str:
        """The sender's identity for pacing: its key, whether valid or not. Without keys: the query string, which names the tenant."""
        if self._gateway.settings.nats_creds is None:
            return scope["query_string"].decode("latin-1")
        return headers.get("authorization") or headers.get("cookie", "")

    def _limit(self, path: str) -> int:
        return _longest(self._limits, path) or self._gateway.settings.body_bytes

    def _check(self, scope: Scope, headers: Headers, *, is_health: bool) -> None:
        """Raises: Problem if the gateway drains, or if a browser may have sent the request from a page of another site."""
        if self._gateway.drain.began.is_set() and not is_health:
            refusal = {"Retry-After": "1", "Connection": "close"}
            raise Problem(503, "Unavailable", "this replica ends; send the request again", "draining", headers=refusal)
        host = _HOST.match(headers.get("host", ""))
        if self._gateway.settings.nats_creds is None and (host is None or not is_loopback(host["name"])):
            # Without keys, a web page whose host name resolves to this machine (DNS rebinding) would be an admin.
            raise Problem(421, "Misdirected request", "without keys, the door has only names of this machine", "misdirected")
        if self._gateway.settings.nats_creds is None and scope["method"] not in READING:
            check_site(headers, self._gateway.settings.cors_origins)

    async def _fail(self, error: Exception, scope: Scope, receive: Receive, sent: "_Sent") -> None:
        problem = as_problem(error)
        if problem is None:
            log.error("request_crashed", exc_info=error)
            problem = Problem(500, "Internal error", "the gateway's log has the reason under the id in x-request-id", "internal")
        if problem.status == 408 and sent.place is None:
            # Thousands of slow clients may become overdue in one moment. Pacing spreads them over turns of the loop; others continue.
            sent.place = await self._pacing.begin(OVERDUE)
            await asyncio.sleep(0)
        if sent.status is None:
            await self.render(scope["path"], problem)(scope, receive, sent)


def head_of(path: str) -> str:
    """Path prefix shared by a family's routes: `/v1/tasks` of `/v1/tasks/{task}`."""
    return "/".join(path.split("/")[:3])


def check_site(headers: Headers, origins: Collection[str] = ()) -> None:
    """Raises: Problem for a request that a browser sends from another site, unless its origin is in `origins`."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and headers.get("origin") not in origins:
        raise Problem(403, "Not permitted", "a page of another site sends this", "cross_site")


def _longest(by_path: Mapping[str, T], path: str) -> T | None:
    """Value of the longest prefix of `path`; None if there is none."""
    found = [start for start in by_path if path == start or path.startswith(f"{start}/")]
    return by_path[max(found, key=len)] if found else None


class _Sent:
    """Adds the request's id and its rate limits to the answer, and records its status."""

    def __init__(self, send: Send, body: "_Body", state: dict[str, Any]) -> None:
        """`state`: state of the request, where its route stores its rate limits. `Any`: the framework's type."""
        self._send = send
        self._body = body
        self._state = state
        self.status: int | None = None
        self.place: PreparationSlot | None = None
        """Slot among the sender's requests in preparation; None: not taken yet."""
        self.meter: Meter | None = None

    def leave(self) -> None:
        if self.place is not None:
            self.place.leave()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self.place is not None and self.meter is not None:
                is_malformed = self._state.get("is_malformed", False) and self._body.size > SHORT_BODY
                self.place.charge(MALFORMED * self.meter.spent_s if is_malformed else self.meter.beyond_free_s(self._body.size))
            self.leave()
            if message["status"] in (401, 413):
                await self._body.discard()
            self.status = message["status"]
            MutableHeaders(scope=message).update({"x-request-id": self._state["request_id"]} | headers_of(self._state.get("rates", {})))
        await self._send(message)


class _Body:
    """The body of a request, limited in size and time."""

    def __init__(self, receive: Receive, headers: Headers, limit: int, timeout_s: float, state: dict[str, Any]) -> None:
        """`state`: as in `_Sent`. Its `read_s` becomes the time, by `time.monotonic()`, at which the body was complete."""
        self._receive: Callable[[], Awaitable[Message]] = receive
        self._headers = headers
        self._limit = limit
        self._timeout_s = timeout_s
        self._state = state
        self._began = time.monotonic()
        self.size = 0
        self._is_read = False
        self._held: Message | None = None
        """A complete body that has not been consumed yet."""

    def check_announced(self) -> None:
        """Raises: Problem if the announced size is too large, before anything is read."""
        announced = self._headers.get("content-length", "")
        if announced.isdigit() and int(announced) > self._limit:
            raise self._too_large()

    async def complete_if_short(self) -> None:
        """Read and hold a short body. Raises: Problem if it arrives too slowly."""
        announced = self._headers.get("content-length", "")
        is_short = announced.isdigit() and 0 < int(announced) <= SHORT_BODY
        if not is_short or "expect" in self._headers:  # a client that waits for `100 Continue` may be refused before
            return
        parts = list[bytes]()
        while self._held is None:
            message = await self()
            parts.append(message.get("body", b""))
            if self._is_read:
                self._held = {**message, "body": b"".join(parts)} if message["type"] == "http.request" else message

    async def __call__(self) -> Message:
        """Next message of the body. Raises: Problem if the body is too large or too slow."""
        if self._held is not None:
            held, self._held = self._held, None
            return held
        if self._is_read:  # the next message is the disconnection
            return await self._receive()
        left_s = self._began + self._timeout_s + self.size / MIN_RATE - time.monotonic()
        try:
            async with asyncio.timeout(left_s):
                message = await self._receive()
        except TimeoutError:
            headers = {"Connection": "close"}
            raise Problem(408, "Request timeout", "the body came too slowly", "too_slow", headers=headers) from None
        self.size += len(message.get("body", b""))
        self._is_read = not message.get("more_body", False)
        self._state["read_s"] = time.monotonic()
        if self.size > self._limit:
            raise self._too_large()
        return message

    async def discard(self) -> None:
        """Read and drop the rest of a refused body, up to DISCARDED bytes: closing a connection with unread data resets it, and the client
        never sees the answer."""
        if "expect" in self._headers:  # the client waits for `100 Continue` before it sends the body
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_S):
                while not self._is_read and self.size < self._limit + DISCARDED:
                    message = await self._receive()
                    self.size += len(message.get("body", b""))
                    self._is_read = not message.get("more_body", False)

    def _too_large(self) -> Problem:
        detail = f"a body has at most {self._limit} bytes here"
        return Problem(413, "Too large", detail, "too_large", headers={"Connection": "close"})


def _log(scope: Scope, status: int | None, took_s: float) -> None:
    """Log the route's pattern, not the path, so that logs contain no task ids."""
    route = getattr(scope.get("route"), "path", None)
    log.info("http_request", method=scope["method"], route=route, status=status, took_s=round(took_s, 4))
