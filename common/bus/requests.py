"""Request and reply, and live messages, by NATS's core: nothing is stored, and no JetStream is needed.

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
"""Live messages that wait for their reader here; more wait in nats-py, within its bounds."""
REPLY_SUBJECTS = ("_INBOX.", "_R_.")
"""Beginnings of subjects that are replied to: inboxes, and what a server makes of them between accounts. A caller names the subject,
so that without this it could have an answer published among jobs, or among another tenant's events."""


class NoResponder(Unavailable):
    """No process answers on the subject now."""


@dataclass(frozen=True)
class Request:
    """A request as it arrived, and the way to answer it."""

    subject: str
    headers: Mapping[str, str]
    body: bytes
    client: Client
    reply_to: str

    async def reply(self, answer: Message, body: bytes) -> None:
        """`body`: the encoded answer. Nothing happens when the client has gone. Raises: Unavailable."""
        with unavailable_as(f"answer {self.subject}"):
            await self.client.publish(self.reply_to, body, headers={KIND_HEADER: answer.kind})


class Listening:
    """Live messages on a subject. Some may be lost, where the connection is, and some may come twice."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._arrived = asyncio.Queue[Msg | None](ARRIVED)
        """None: the connection is closed."""

    async def put(self, message: Msg) -> None:
        await self._arrived.put(message)

    def end(self) -> None:
        """The connection is closed: `next` waits no more."""
        if self._arrived.empty():
            self._arrived.put_nowait(None)

    async def next(self, timeout_s: float) -> Delivery | None:
        """None when nothing comes for so long. Raises: Unavailable when the connection is closed."""
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
        """The first answer. Raises: NoResponder immediately when no process answers; Unavailable; Forbidden."""
        body, headers = message.encode(), {KIND_HEADER: message.kind}
        with unavailable_as(f"ask {subject}"):
            try:
                request = self._client.request(subject, body, timeout=timeout_s, headers=headers)
                return delivery_of(await self._connection.unless_refused(subject, request))
            except NoRespondersError:
                raise NoResponder(f"no process answers {subject}") from None

    async def tell(self, subject: str, message: Message) -> None:
        """Send to those who listen now; nothing is stored. Raises: Unavailable without a connection; Reject when it is too large."""
        body = message.encode()
        refuse_oversize(subject, body, {KIND_HEADER: message.kind})
        with unavailable_as(f"send {subject}"):
            if not self._client.is_connected:
                raise Unavailable(f"NATS is not connected, so that {subject} cannot be sent")  # nats-py would keep it, and send it late
            await self._client.publish(subject, body, headers={KIND_HEADER: message.kind})

    @asynccontextmanager
    async def listening(self, subject: str) -> AsyncGenerator[Listening]:
        """Messages that are published after this began. Raises: Unavailable; Forbidden.

        They arrive by a callback: nats-py's `next_msg` creates two tasks and a random name for each.
        """
        listening = Listening(self._client)
        async with self._subscribed(subject, listening.put, listening.end):
            yield listening

    async def hear(self, subject: str, take: Callable[[Delivery], Awaitable[None]], listens: Callable[[], None]) -> None:
        """Calls `take` with each live message, until cancelled. For many messages: no other runner wakes up for them.

        `listens` is called once messages come. Raises: Unavailable also when the connection is closed; Forbidden; what `take` raises.
        """
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end(error: Exception) -> None:
            if not ended.done():
                ended.set_exception(error)

        async def take_one(message: Msg) -> None:
            try:
                await take(delivery_of(message))
            except Exception as error:  # nats-py would report it as its own, and go on
                end(error)

        async with self._subscribed(subject, take_one, lambda: end(Unavailable("could not listen: nats: connection closed"))):
            listens()
            await ended

    @asynccontextmanager
    async def _subscribed(self, subject: str, call: Callable[[Msg], Awaitable[None]], closed: Callable[[], None]) -> AsyncGenerator[None]:
        """`closed`: called when the connection is. Raises: Unavailable; Forbidden.

        A key that may make a consumer can have stored messages delivered here, whatever it may publish: they bear another subject.
        """

        async def call_if_sent_here(message: Msg) -> None:
            if is_on(subject, message.subject):
                await call(message)

        async def subscribe() -> Subscription:
            subscription = await self._client.subscribe(subject, cb=call_if_sent_here)
            await self._client.flush(timeout=int(self._connection.timings.answer_timeout_s) or 1)  # the server listens, or has refused
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
        """Requests to this process, which shares them with the others of its queue group. One without an inbox is dropped."""
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
