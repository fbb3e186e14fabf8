"""Request and reply, and live messages, over core NATS: nothing is stored, and no JetStream is needed.

A client that may publish `ask.<tenant>.*` and subscribe to its inbox can ask; one that may subscribe to `events.<tenant>.>` can listen.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from common.bus.delivery import Delivery, delivery_of, refuse_oversize
from common.bus.transport.connection import Connection, unavailable_as
from common.errors import Unavailable
from common.messages import Message
from common.streams import KIND_HEADER, is_on

T = TypeVar("T")

ARRIVED = 64
"""Maximum live messages queued here for their reader; more wait in nats-py, within its limits."""
REPLY_SUBJECTS = ("_INBOX.", "_R_.")
"""Prefixes of reply subjects that are answered: inboxes, and a server's mapping of them between accounts. A caller names the subject,
so without this check it could have an answer published among jobs, or among another tenant's events.
"""


class NoResponder(Unavailable):
    """No process currently answers on the subject."""


@dataclass(frozen=True)
class Request:
    """A request as received, and its reply subject."""

    subject: str
    headers: Mapping[str, str]
    body: bytes
    client: Client
    reply_to: str

    async def reply(self, answer: Message, body: bytes) -> None:
        """Send the answer. `body`: the encoded answer. Does nothing if the client has gone. Raises: Unavailable."""
        with unavailable_as(f"answer {self.subject}"):
            await self.client.publish(self.reply_to, body, headers={KIND_HEADER: answer.kind})


class Listening:
    """Live messages on a subject. Some may be lost if the connection is lost, and some may arrive twice."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._arrived = asyncio.Queue[Msg | None](ARRIVED)
        """None marks the end: the connection is closed."""

    async def put(self, message: Msg) -> None:
        await self._arrived.put(message)

    def end(self) -> None:
        """End the waiting of `next`: the connection is closed."""
        if self._arrived.empty():
            self._arrived.put_nowait(None)

    async def next(self, timeout_s: float) -> Delivery | None:
        """The next message; None after `timeout_s` without one. Raises: Unavailable if the connection is closed."""
        if self._arrived.empty() and not self._client.is_closed:
            try:
                async with asyncio.timeout(timeout_s):
                    message = await self._arrived.get()
            except TimeoutError:
                return None
        else:
            message = None if self._arrived.empty() else self._arrived.get_nowait()
        if message is None:
            raise Unavailable("could not listen: nats: connection closed")
        return delivery_of(message)


class Requests:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client = connection.client

    async def ask(self, subject: str, message: Message, *, timeout_s: float) -> Delivery:
        """Send a request; returns the first answer. Raises: NoResponder immediately if no process answers; Unavailable; Forbidden."""
        body, headers = message.encode(), {KIND_HEADER: message.kind}
        with unavailable_as(f"ask {subject}"):
            try:
                request = self._client.request(subject, body, timeout=timeout_s, headers=headers)
                return delivery_of(await self._connection.unless_refused(subject, request))
            except NoRespondersError:
                raise NoResponder(f"no process answers {subject}") from None

    async def send(self, subject: str, message: Message) -> None:
        """Send to current subscribers; nothing is stored. Raises: Unavailable without a connection; Reject if it is too large."""
        body = message.encode()
        refuse_oversize(subject, body, {KIND_HEADER: message.kind})
        with unavailable_as(f"send {subject}"):
            if not self._client.is_connected:
                raise Unavailable(f"NATS is not connected, so that {subject} cannot be sent")  # nats-py would buffer it, and send it late
            await self._client.publish(subject, body, headers={KIND_HEADER: message.kind})

    @asynccontextmanager
    async def listening(self, subject: str) -> AsyncGenerator[Listening]:
        """Messages published after entry. Raises: Unavailable; Forbidden.

        They arrive by a callback: nats-py's `next_msg` creates two tasks and a random name for each.
        """
        listening = Listening(self._client)
        async with self._subscribed(subject, listening.put, listening.end):
            yield listening

    async def hear(self, subject: str, take: Callable[[Delivery], Awaitable[None]], listens: Callable[[], None]) -> None:
        """Call `take` with each live message, until cancelled. Suitable for high rates, because no further task has to wake up.

        `listens` is called once the subscription is active. Raises: Unavailable, also if the connection is closed; Forbidden; exceptions of
        `take`.
        """
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end(error: Exception) -> None:
            if not ended.done():
                ended.set_exception(error)

        async def take_one(message: Msg) -> None:
            try:
                await take(delivery_of(message))
            except Exception as error:  # nats-py would only report it, and continue
                end(error)

        async with self._subscribed(subject, take_one, lambda: end(Unavailable("could not listen: nats: connection closed"))):
            listens()
            await ended

    @asynccontextmanager
    async def _subscribed(self, subject: str, call: Callable[[Msg], Awaitable[None]], closed: Callable[[], None]) -> AsyncGenerator[None]:
        """Subscribe for a block. `closed`: called when the connection closes. Raises: Unavailable; Forbidden.

        Messages with another subject are dropped: a key that may create a consumer can have stored messages delivered to this subject, even
        if it may not publish here.
        """

        async def call_if_sent_here(message: Msg) -> None:
            if is_on(subject, message.subject):
                await call(message)

        async def subscribe() -> Subscription:
            subscription = await self._client.subscribe(subject, cb=call_if_sent_here)
            await self._client.flush(timeout=int(self._connection.timings.answer_timeout_s) or 1)  # until subscribed or refused
            return subscription

        with unavailable_as(f"subscribe to {subject}"):
            subscription = await self._connection.unless_refused(subject, subscribe())
        self._connection.closed.add(closed)
        try:
            yield
        finally:
            self._connection.closed.remove(closed)
            with suppress(NatsError, asyncio.TimeoutError):
                await subscription.unsubscribe()

    async def requests(self, subject: str, queue: str) -> AsyncIterator[Request]:
        """Requests to this process, shared with the other members of its queue group. A request without an inbox is dropped."""
        subscription = await self._connection.retry_until_ready(lambda: self._client.subscribe(subject, queue=queue))
        try:
            async for message in subscription.messages:
                if message.reply.startswith(REPLY_SUBJECTS):
                    yield _request(self._client, message)
        finally:
            with suppress(NatsError, asyncio.TimeoutError):
                await subscription.unsubscribe()


def _request(client: Client, message: Msg) -> Request:
    return Request(message.subject, message.headers or {}, message.data, client, message.reply)
