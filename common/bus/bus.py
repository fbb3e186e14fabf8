"""Publish messages, and consume them singly or in batches."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import structlog
from nats.aio.msg import Msg
from nats.errors import BadHeaderError, BadSubjectError
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import APIError

from common.access.credentials import Credentials
from common.bus import metrics
from common.bus.accounts import Accounts, OwnJobs
from common.bus.clock import Clock
from common.bus.delivery import TRACE_HEADER, BatchHandler, Delivery, Handler, Outgoing, Slots, delivery_of, refuse_oversize, trace
from common.bus.handling import Handling
from common.bus.pull import Pull
from common.bus.requests import Requests
from common.bus.stored.declarations import Declarations
from common.bus.stored.key_value import KeyValueStore
from common.bus.stored.snapshots import Snapshots
from common.bus.stored.stream_reader import StreamReader
from common.bus.transport.address import NO_FILES, TlsFiles
from common.bus.transport.connection import Connection, Server
from common.bus.transport.refusals import Refused
from common.bus.transport.timings import DEFAULT, Timings
from common.errors import Fatal, MarlaasError, QueueFull, Reject, StreamFull, Unavailable
from common.resilience import crashpoints
from common.streams import KIND_HEADER, STREAMS, Consumer, Stream

IDLE_RATIO = 4.0
"""Interval between batches as a multiple of the previous batch's handling time."""
FULL = 10077
"""JetStream's error code for a message that exceeds the maximum of its subject, or the bytes of its stream."""
BYTES = "maximum bytes"
"""Text contained in JetStream's error FULL if the stream's bytes were exceeded."""
TOO_LARGE = 10054
"""JetStream's error code for a message larger than its stream accepts."""
MAX_IDLE_S = 0.5
"""Maximum pause between batches in seconds: a batch slowed by an unavailable server must not delay the next by a multiple of its time."""

log = structlog.get_logger()


class Bus:
    """A connection to NATS: `publish` and `consume` here; `kv`, `streams`, `clock`, `requests`, `accounts` and `snapshots` as
    attributes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._timings = connection.timings
        self.close, self.wait_fatal, self.retry_until_ready = connection.close, connection.wait_fatal, connection.retry_until_ready
        self.unless_refused = connection.unless_refused
        self.declarations = Declarations(connection)
        self.own_jobs = OwnJobs(connection, self.declarations)
        self._handling = Handling(self.publish, connection.timings.backoff)
        self._pulls: list[Pull] = []
        self.kv = KeyValueStore(connection)
        self.streams = StreamReader(connection)
        self.clock = Clock(connection)
        self.requests = Requests(connection)
        self.accounts = Accounts(connection)
        self.snapshots = Snapshots(connection)
        connection.reconnected = self._reset_pulls

    @classmethod
    async def connect(
        cls,
        url: str,
        name: str,
        *,
        creds: Path | Credentials | None = None,
        insecure: bool = False,
        tls: TlsFiles = NO_FILES,
        until_accepted: bool = False,
        timings: Timings = DEFAULT,
    ) -> "Bus":
        """Connect, and wait until the server answers. With `until_accepted`, also wait while the server refuses the credentials or its
        certificate is refused, because either may be corrected meanwhile.

        `url`: one address, or comma-separated addresses of a cluster's nodes; the client uses any that answers and fails over to another.
        `creds`: a key, or its file, if NATS requires one. `insecure`: whether a key may be used without TLS beyond loopback.
        Raises: Fatal if `url` is not an address, the server is too old, the file `creds` is not a key or others can read it, or a file of
        `tls` cannot be used. Without `until_accepted`: also Fatal if the server's certificate is refused, and KeyRefused if the server
        refuses the credentials.
        """
        return cls(await Connection.open(Server(url, name, creds, insecure, tls), until_accepted=until_accepted, timings=timings))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self.close())

    @property
    def key(self) -> Credentials | None:
        """The key of this connection."""
        return self._connection.key

    @property
    def _is_tenants(self) -> bool:
        return self.key is not None and self.key.tenant is not None

    @property
    def is_connected(self) -> bool:
        return self._connection.client.is_connected

    @property
    def forbidden(self) -> int:
        """Number of messages and subscriptions that NATS did not permit this connection's key."""
        return self._connection.forbidden

    def blobs_context(self, *, answer_s: float | None = None) -> JetStreamContext:
        """JetStream context, for `common.blobs` only. `answer_s`: maximum seconds for an answer; None: the connection's default."""
        return self._connection.client.jetstream(timeout=answer_s) if answer_s else self._connection.js

    async def declare(
        self, streams: Sequence[Stream] = STREAMS, *, replicas: int = 1, blobs_bytes: int = 0, streams_bytes: int = 0
    ) -> None:
        """Create or update every stream and bucket. Each scheduler replica calls this at its start; concurrent calls are safe.

        `replicas`: minimum copies of each stream in a cluster. `blobs_bytes`: size limit of the blob store; 0 leaves it unchanged.
        `streams_bytes`: total size limit of all streams, each of which gets its share.
        """
        await self.declarations.declare(streams, replicas=replicas, blobs_bytes=blobs_bytes, streams_bytes=streams_bytes)
        await self.clock.read()

    async def wait_until_declared(self) -> None:
        """Wait until a scheduler has declared the streams. Raises: Fatal if NATS closes the connection permanently."""
        await self.declarations.wait()
        await self.clock.read()

    async def publish(self, out: Outgoing, body: bytes | None = None) -> int:
        """Store `out` in its stream; returns its sequence, or that of the first copy for a duplicate. `body`: the encoded message, if
        available.

        Raises: Unavailable if the server did not confirm within `Timings.publish_patience_s`; Reject if it is too large; QueueFull and
        StreamFull immediately, because only consumers make room; Forbidden if a tenant's key does not permit the subject; Fatal if NATS
        has closed the connection permanently.
        """
        body = out.message.encode() if body is None else body
        headers = {KIND_HEADER: out.message.kind, TRACE_HEADER: trace(), **out.headers}
        return await self.publish_raw(out.subject, body, out.message_id, headers)

    async def publish_raw(self, subject: str, body: bytes, message_id: str, headers: Mapping[str, str]) -> int:
        """`publish` for a body that is already encoded."""
        refuse_oversize(subject, body, headers)
        started = time.monotonic()
        attempt = 0
        for pull in self._pulls:
            await pull.acknowledge()
        while True:
            try:
                storing = self._connection.js.publish(
                    subject, body, timeout=self._timings.answer_timeout_s, headers={**headers, "Nats-Msg-Id": message_id}
                )
                ack = await (self.unless_refused(subject, storing) if self._is_tenants else storing)
                metrics.PUBLISHED.labels(subject.split(".")[0]).inc()
                return ack.seq
            except (BadSubjectError, BadHeaderError) as error:
                raise Reject(f"{subject} cannot be published: {error}") from None
            except (TimeoutError, NatsError, OSError) as error:
                if isinstance(error, APIError):
                    _raise_for(error, subject)
                attempt += 1
                self._connection.raise_if_refused()
                if isinstance(error, Refused) or time.monotonic() - started > self._timings.publish_patience_s:
                    raise Unavailable(f"NATS did not store {subject}: {error}") from None
                log.warning("publish_retried", subject=subject, attempt=attempt, error=str(error) or type(error).__name__)
                await asyncio.sleep(self._timings.backoff.pause_s(attempt))

    async def consume(self, consumer: Consumer, handler: Handler, slots: Slots, *, max_pull: int = 64) -> None:
        """Run `handler` for each message in a task of its own, at most `slots` concurrently, until cancelled.

        `max_pull` limits one request, so that replicas share a burst. Raises: Fatal from a handler.
        """
        async with self._pulling(consumer) as pull, asyncio.TaskGroup() as runners:
            forget = slots.on_change(pull.wake, pull.withdraw_soon)
            tending = runners.create_task(pull.tend())
            try:
                while True:
                    for message in await pull.receive(lambda: min(slots.free, max_pull)):
                        slots.take()
                        runners.create_task(self._handling.handle(pull, message, handler, slots))
            finally:
                forget()
                # Before the runners are cancelled: messages that they hand back must not be redelivered to this replica.
                await asyncio.shield(pull.stop())
                tending.cancel()

    async def consume_batches(self, consumer: Consumer, handler: BatchHandler, *, max_batch: int, spacing_s: float = 0.0) -> None:
        """Run `handler` for lists of at most `max_batch` messages, one list at a time, until cancelled.

        Lists start at least `spacing_s` apart, and IDLE_RATIO times the last list's handling time (with a pause of at most MAX_IDLE_S).
        So a quiet system has no delay, and a busy one gets longer lists: one transaction then handles more messages. If a list fails,
        each of its messages is handled separately, so that a bad message affects no other.
        """
        async with self._pulling(consumer) as pull, asyncio.TaskGroup() as runners:
            tending = runners.create_task(pull.tend())
            not_before = 0.0
            try:
                while True:
                    messages = await pull.receive(lambda: max_batch - pull.held)
                    if (early_s := not_before - time.monotonic()) > 0:
                        await asyncio.sleep(early_s)
                        messages += pull.take()
                    began = time.monotonic()
                    done = await self._handle_batch(pull, messages, handler)
                    not_before = began + (batch_interval_s(spacing_s, time.monotonic() - began) if done else spacing_s)
                    if not done:
                        for message in messages:
                            await self._handling.handle(pull, message, _one_by_one(handler), None)
            finally:
                await asyncio.shield(pull.stop())
                await asyncio.shield(pull.return_held())
                tending.cancel()

    async def _handle_batch(self, pull: Pull, messages: Sequence[Msg], handler: BatchHandler) -> bool:
        """Run the handler for the list; returns False if it failed, or contains a message with too many deliveries. Raises: Fatal from the
        handler."""
        consumer = pull.consumer
        deliveries = [delivery_of(message) for message in messages]
        if any(delivery.attempt > consumer.max_deliveries for delivery in deliveries):
            return False
        try:
            await handler(deliveries)
            crashpoints.reached("before_ack")
            for message in messages:
                pull.done(message)
            return True
        except Fatal:
            raise
        except Exception as error:
            if len(messages) == 1 and not isinstance(error, MarlaasError):
                log.exception("handler_failed", consumer=consumer.name)
            elif len(messages) > 1:
                log.warning("handled_one_by_one", consumer=consumer.name, messages=len(messages), error=type(error).__name__)
            return False

    @asynccontextmanager
    async def _pulling(self, consumer: Consumer) -> AsyncGenerator[Pull]:
        await self.declarations.declare_consumer(consumer)
        pull = Pull(self._connection, consumer, lambda: self.declarations.declare_consumer(consumer))
        await pull.start()
        self._pulls.append(pull)
        try:
            yield pull
        finally:
            self._pulls.remove(pull)
            await asyncio.shield(pull.acknowledge())

    def held(self, consumer: Consumer) -> int:
        """Number of the consumer's messages that this process holds and has not acknowledged or handed back."""
        return sum(pull.unacknowledged for pull in self._pulls if pull.consumer == consumer)

    def _reset_pulls(self) -> None:
        for pull in self._pulls:
            pull.reset()


def batch_interval_s(spacing_s: float, took_s: float) -> float:
    """Seconds from the start of a batch that took `took_s` to the start of the next."""
    return max(spacing_s, min(IDLE_RATIO * took_s, took_s + MAX_IDLE_S)) if spacing_s else 0.0


def _one_by_one(handler: BatchHandler) -> Handler:
    async def handle(delivery: Delivery) -> AsyncIterator[Outgoing]:
        await handler([delivery])
        return
        yield  # makes this an async generator, as handlers are

    return handle


def _raise_for(error: APIError, subject: str) -> None:
    """Raise for failures that a retry cannot fix, as Reject, QueueFull or StreamFull; return for others."""
    if error.err_code == TOO_LARGE:
        raise Reject(f"{subject}: the message is larger than its stream takes") from None
    if error.err_code != FULL:
        return
    if BYTES not in (error.description or ""):
        raise QueueFull(f"as many messages wait on {subject} as may") from None
    family = subject.split(".")[0]
    metrics.REFUSED.labels(family).inc()
    log.warning("stream_full", subject=subject, correct="MARLAAS_NATS_STREAMS_BYTES, or the service that takes its messages")
    raise StreamFull(f"the stream of {subject} has as many bytes as it may") from None
