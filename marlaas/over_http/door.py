"""HttpDoor: questions, jobs and events over HTTP, with the same messages as over NATS; live events arrive by a stream, which reconnects."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import httpx2
from pydantic import ValidationError

from common import streams
from common.access.credentials import Credentials
from common.bus import Outgoing, TlsFiles
from common.client_api.asking import UnknownHere
from common.client_api.errors import ClientError, NoAnswer, TooManyJobs, WrongQuestion
from common.client_api.protocol import Asking
from common.messages import Event, Message
from common.resilience.event_loop import is_set_within
from marlaas.over_http.address import is_plain_beyond_this_machine, objection_to_gateway
from marlaas.over_http.connection import PAUSE, Connection, Invalid, Params, no_gateway, refusal

MAX_WAITING = 1_000
"""Maximum events that wait for a reader; beyond it, reading the stream pauses."""
HEADERS = {"Accept": "text/event-stream"}
M = TypeVar("M", bound=Message)


class LiveEvents:
    """Live events of `HttpDoor.listening`."""

    def __init__(self, connection: Connection, params: Params) -> None:
        self._connection = connection
        self._params = params
        self._found = asyncio.Queue[Event | ClientError | None](MAX_WAITING)
        """Unread events. An error is the end of the stream; None is a reconnection, before which events may have been lost."""
        self._begun = asyncio.Event()

    @asynccontextmanager
    async def read(self) -> AsyncGenerator["LiveEvents"]:
        """Read the stream during the block; lost events are detected. Raises: ClientError if it is refused; NoAnswer."""
        reader = asyncio.create_task(self._read())
        try:
            await self._begin()
            yield self
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def next(self, timeout_s: float) -> Event | None:
        """The next event; None after `timeout_s` without one, or if some may have been lost. Raises: ClientError if the stream is
        refused."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                found = await self._found.get()
                if isinstance(found, ClientError):
                    self._found.put_nowait(found)
                    raise found
                return found
        return None

    async def _begin(self) -> None:
        if not await is_set_within(self._begun, self._connection.patience_s + 1):
            raise NoAnswer(f"the gateway at {self._connection.shown} sends no events")
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
        """Events until the stream ends; None after a reconnection. Raises: ClientError; NoAnswer."""
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


class HttpDoor(Asking):
    """`AnyDoor` over a gateway. `tenant`: tenant whose data it reads; None: all, which needs an admin's key."""

    def __init__(self, connection: Connection, tenant: str | None) -> None:
        self.connection = connection
        self.tenant = tenant

    @property
    def key(self) -> Credentials | None:
        """None: this client has no key for NATS; the gateway connects to NATS for it."""
        return None

    def params(self, tenant: str | None = None) -> Params:
        """Query parameter that names the tenant. `tenant`: overrides the door's own; EVERY_TENANT: all."""
        named = tenant or self.tenant
        return [] if named in (None, streams.EVERY_TENANT) else [("tenant", str(named))]

    async def ask(self, verb: str, request: Message, answer: type[M], *, tenant: str | None = None) -> M:
        """Ask a question; returns its answer. Raises: UnknownHere; ClientError if the request is wrong or not permitted; NoAnswer."""
        try:
            found = await self.connection.request("POST", f"/v1/ask/{verb}", self.params(tenant), body=_fields(request))
        except Invalid as error:
            raise WrongQuestion(verb, str(error)) from None
        try:
            return answer.model_validate_json(found.content)
        except ValidationError:
            raise no_gateway(self.connection.shown) from None

    async def publish(self, out: Outgoing) -> None:
        """Send a job. Raises: ClientError if it is wrong, not permitted, or the maximum number is waiting; NoAnswer if NATS may not have
        it."""
        _, verb, tenant = out.subject.split(".")
        headers = {"Idempotency-Key": out.message_id}
        await self.connection.request("POST", f"/v1/jobs/{verb}", self.params(tenant), body=_fields(out.message), headers=headers)

    @asynccontextmanager
    async def listening(self, tenant: str | None, task: str | None) -> AsyncGenerator[LiveEvents]:
        """Listen to live events of a tenant (None: all) and task (None: all). Raises: ClientError if that is not permitted; NoAnswer."""
        about: Sequence[tuple[str, str]] = [] if task is None else [("task", task)]
        async with LiveEvents(self.connection, [*self.params(tenant), *about]).read() as live:
            yield live

    async def next_event(self, live: LiveEvents, timeout_s: float) -> Event | None:
        """The next event; None after `timeout_s` without one, or if some may have been lost. Raises: ClientError if the stream is
        refused."""
        return await live.next(timeout_s)


def _fields(message: Message) -> dict[str, object]:
    """Fields of a message that differ from their defaults: an older gateway does not know all fields."""
    return message.model_dump(mode="json", exclude_defaults=True)


@asynccontextmanager
async def entered(
    url: str, tenant: str | None, *, key: str | None, insecure: bool, tls: TlsFiles, timeout_s: float, patience_s: float
) -> AsyncGenerator[HttpDoor]:
    """The door of the gateway at `url`, for `tenant`, or else for the key's tenant.

    Raises: ClientError if the address or the key is invalid, or the gateway refuses the key; NoAnswer if no gateway answers within
    `timeout_s`; Fatal if a file of `tls` cannot be used.
    """
    if objection := objection_to_gateway(url):
        raise ClientError(objection)
    key = key.strip() if key else None
    if key and not (key.startswith("mk-") and key.isascii() and key.isprintable() and " " not in key):
        raise ClientError("this is no key of a gateway; one is mk-… and is made by `marlaas keys create --http`")
    if key and is_plain_beyond_this_machine(url) and not insecure:
        raise ClientError(f"the key would cross a network without TLS: use https://, not {url}; or --insecure where that is trusted")
    async with Connection.open(url, key, tls, patience_s) as connection:
        try:
            answer = await connection.request("GET", "/v1/key", answer_s=max(timeout_s, 1.0), patience_s=timeout_s)
            of_key = answer.json()["tenant"]
        except (UnknownHere, ValueError, LookupError, TypeError):
            raise no_gateway(connection.shown) from None
        yield HttpDoor(connection, tenant or of_key)
