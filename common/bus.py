"""The door to NATS: connect, declare, publish, consume, follow, and small shared values.

Delivery is at least once. What makes it exactly once in effect is elsewhere: derived message ids here, guarded
statements in the scheduler, immutable blobs. The rules of delivery:

- A consumer asks for as many messages as it has free slots, never more, so that another replica gets the rest.
- While a handler works, its message is kept alive by heartbeats (`common/heartbeats.py`); it is acknowledged after its
  results are published. A message that is redelivered to the process that still works on it is not begun there a second time.
- The handler's exception decides what else happens (see `errors.py`). While a server is away, messages wait in hand.
- A message that was delivered `max_deliveries` times without an answer is a dead letter: it may be what kills processes.

Time that several services must agree on is NATS's (`Bus.now_s`): a host's own clock may be wrong, or jump.
"""

import asyncio
import json
import re
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Generic, TypeVar, cast
from urllib.parse import urlsplit

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import BadHeaderError, BadSubjectError
from nats.errors import Error as NatsError
from nats.js import JetStreamContext, api
from nats.js.errors import APIError, BucketNotFoundError, KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue

from common import crashpoints, metrics
from common.backoff import jittered
from common.cancellation import notice_cancellation
from common.errors import Fatal, MarlaasError, Reject, Retry, Unavailable
from common.heartbeats import Heartbeats, beat
from common.messages import DeadLetter, Message
from common.streams import (
    BLOBS_BUCKET,
    HISTORY_BUCKET,
    KIND_HEADER,
    REPLICA_TTL_S,
    REPLICAS_BUCKET,
    STREAMS,
    TASKS_BUCKET,
    Consumer,
    Stream,
    failed,
    token,
)
from common.timings import DEFAULT, Timings

M = TypeVar("M", bound=Message)
T = TypeVar("T")

TRACE_HEADER = "traceparent"
SCHEMES = ({"nats", "tls"}, {"ws", "wss"})
"""Of a server's address; those of one cluster are of one kind."""
OLDEST_SERVER = (2, 10)
"""Older servers ignore several consumer filters without a word."""
AT_REST = 4.0
"""How many times longer than its work takes a handler that may wait lets its messages gather."""
REST_MOST_S = 0.5
"""Maximum pause of such a handler: one that took seconds because a server was away must not wait for many more."""
ACKNOWLEDGE_WITHIN_S = 0.02
"""Until then acknowledgements share a packet with whatever else is sent: alone, one costs both sides as much as a message."""
MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
BEATS_A_LEASE = 5
"""Heartbeats that a lease (`Consumer.ack_wait_s`) has room for: three may be late or lost."""
HEADER_BYTES = 512
"""More than those take that are added to every message."""
MAX_BURIED_BYTES = MAX_PAYLOAD_BYTES - 256 * 1024
"""A dead letter with a larger body would itself be too large; it is kept without."""
EMPTY_LOOKS = 3
"""At a bucket that looks empty and is not; what was deleted leaves a mark, which counts as a value for a while."""
NO_ROOM = 10047
"""JetStream's error code for a bound that is more than its store may take."""
TOO_FEW_NODES = 10005
"""JetStream's error code for a declaration that needs nodes of the cluster that are not there yet."""

log = structlog.get_logger()
_trace: ContextVar[str | None] = ContextVar("trace", default=None)


@dataclass(frozen=True)
class Outgoing:
    """A message to publish. `message_id` is derived from what it is about, so that sending it twice stores it once."""

    subject: str
    message: Message
    message_id: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Delivery:
    """A message as it arrived."""

    subject: str
    headers: Mapping[str, str]
    body: bytes
    sequence: int
    """In its stream."""
    attempt: int
    """1 at first delivery; 0 where deliveries are not counted."""

    def read(self, model: type[M]) -> M:
        """The body as `model`.

        Raises: Reject when it is another kind or malformed.
        """
        kind = self.headers.get(KIND_HEADER, model.kind)
        if kind != model.kind:
            raise Reject(f"{self.subject} carries '{kind}'; this version understands '{model.kind}'")
        return model.decode(self.body)


@dataclass(frozen=True)
class Revised(Generic[M]):
    """A key-value entry."""

    value: M
    revision: int


Handler = Callable[[Delivery], AsyncIterator[Outgoing]]
"""An async generator function: what it yields is published at once."""
BatchHandler = Callable[[Sequence[Delivery]], Awaitable[None]]


class Slots:
    """How much work a replica takes at once. The bus takes one unit a message; a handler may take and release more."""

    def __init__(self, total: int) -> None:
        self._free = total
        self._tell: Callable[[], None] = lambda: None

    @property
    def free(self) -> int:
        return max(0, self._free)

    def take(self, units: int = 1) -> None:
        self._free -= units

    def release(self, units: int = 1) -> None:
        self._free += units
        self._tell()

    def when_released(self, tell: Callable[[], None]) -> None:
        """Call `tell` each time that units are released; for whoever hands out the work."""
        self._tell = tell


class Bus:
    """A connection to NATS. Survives the server's absence: it reconnects for ever, and says so."""

    def __init__(self, client: Client, beats: Heartbeats, timings: Timings) -> None:
        self._client = client
        self._beats = beats
        self._timings = timings
        self._js: JetStreamContext = client.jetstream(timeout=timings.answer_timeout_s)
        self._pulls: list[_Pull] = []
        self._buckets: dict[str, KeyValue] = {}
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._absent: int | None = None
        """Attempts to reconnect, the current one included: 0 while connected, None before the first connection."""
        self._last_error: Exception | None = None
        self._is_closing = False
        self._ahead_s = time.time() - time.monotonic()
        """NATS's clock minus this process's monotonic one; this host's own clock until NATS's was read."""

    # ---------------------------------------------------------------------------------------------------- connection

    @classmethod
    async def connect(cls, url: str, name: str, *, until_accepted: bool = False, timings: Timings = DEFAULT) -> "Bus":
        """Waits until the server answers, and `until_accepted` also while it refuses the credentials: they may be corrected there.

        `url`: one, or those of a cluster's nodes, separated by commas. Whichever answers is taken, and another when that one dies.
        Raises: Fatal when `url` is no address, or the server is too old, or refuses the credentials otherwise.
        """
        if objection := objection_to_address(url):
            raise Fatal(f"{objection}; correct MARLAAS_NATS_URL")
        client, beats = Client(), Heartbeats(lambda: _beating(url, name, timings))
        bus = cls(client, beats, timings)
        attempt = 0
        while True:
            try:
                await client.connect(
                    _nodes(url),
                    name=name,
                    connect_timeout=timings.connect_timeout_s,  # pyright: ignore[reportArgumentType]  # any number of seconds
                    # The first connection is retried here, where the reason can be told; later ones by the client, for ever.
                    max_reconnect_attempts=1,
                    allow_reconnect=False,
                    reconnect_time_wait=timings.reconnect_s,  # pyright: ignore[reportArgumentType]
                    ping_interval=timings.ping_every_s,  # pyright: ignore[reportArgumentType]
                    max_outstanding_pings=timings.pings_unanswered,
                    error_cb=bus._on_error,
                    disconnected_cb=bus._on_disconnected,
                    reconnected_cb=bus._on_reconnected,
                    closed_cb=bus._on_closed,
                )
                client.options |= {"max_reconnect_attempts": -1, "allow_reconnect": True}
                bus._absent = 0
                break
            except (TimeoutError, OSError, NatsError) as raised:
                attempt += 1
                error = bus._last_error or raised
                if "authorization" not in str(error).lower():
                    log.warning("nats_unreachable", url=_without_password(url), attempt=attempt, error=str(error) or type(error).__name__)
                elif until_accepted:
                    log.error("nats_refuses_credentials", url=_without_password(url), attempt=attempt, correct="MARLAAS_NATS_URL")
                else:
                    raise Fatal(f"NATS at {_without_password(url)} refuses the credentials; correct MARLAAS_NATS_URL") from None
                await asyncio.sleep(timings.backoff.pause_s(attempt))
                await client.close()
                client = Client()
                bus = cls(client, beats, timings)
        version = client.connected_server_version
        if (version.major, version.minor) < OLDEST_SERVER:
            raise Fatal(f"NATS server {version} is too old: {OLDEST_SERVER[0]}.{OLDEST_SERVER[1]} or newer is needed")
        if client.max_payload < MAX_PAYLOAD_BYTES:
            raise Fatal(f"NATS server takes messages of {client.max_payload} bytes; set max_payload to {MAX_PAYLOAD_BYTES} or more")
        return bus

    async def close(self) -> None:
        self._is_closing = True
        await self._beats.stop()
        with suppress(NatsError, asyncio.TimeoutError):
            await self._client.flush(timeout=2)
        with suppress(OSError):  # the connection is lost already
            await self._client.close()

    @property
    def is_connected(self) -> bool:
        return self._client.is_connected

    def now_s(self) -> float:
        """Unix time on NATS's clock, the same for all services; it does not jump with this host's."""
        return time.monotonic() + self._ahead_s

    async def keep_time(self) -> None:
        """Follow NATS's clock, until cancelled; while NATS is away the last reading counts."""
        while True:
            await asyncio.sleep(self._timings.clock_every_s)
            with suppress(TimeoutError, NatsError, OSError):
                await self._read_clock(self._timings.slowest_clock_s)

    async def _read_clock(self, slowest_s: float) -> bool:
        """False where the answer took longer, and says little."""
        asked = time.monotonic()
        answer = json.loads(
            (await self._client.request(f"$JS.API.STREAM.INFO.{STREAMS[0].name}", timeout=self._timings.answer_timeout_s)).data
        )
        answered = time.monotonic()
        if answered - asked > slowest_s or "ts" not in answer:
            return False
        self._ahead_s = datetime.fromisoformat(answer["ts"]).timestamp() - (asked + answered) / 2
        return True

    async def broken(self) -> None:
        """Never returns; raises Fatal when the server forbids something that this process needs, or sends it away for good."""
        await asyncio.shield(self._broken)

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error  # `connect` tells, and `broken` where it was the last
        if self._absent is None:
            return
        if "permissions violation" in str(error).lower() and not self._broken.done():
            self._broken.set_exception(Fatal(f"NATS forbids this: {error}"))
        elif self._absent:
            self._client.options["reconnect_time_wait"] = min(self._timings.backoff.pause_s(self._absent), self._timings.reconnect_most_s)
            log.warning("nats_unreachable", attempt=self._absent, error=str(error) or type(error).__name__)
            self._absent += 1
        else:
            log.warning("nats_error", error=str(error) or type(error).__name__)

    async def _on_disconnected(self) -> None:
        if not self._client.is_closed:
            self._absent = 1
            log.warning("nats_disconnected")

    async def _on_closed(self) -> None:
        """nats-py makes no other connection after some errors, as when the server was given other passwords."""
        if self._absent is not None and not self._is_closing and not self._broken.done():
            self._broken.set_exception(Fatal(f"NATS has closed the connection: {self._last_error or 'it did not say why'}"))

    async def _on_reconnected(self) -> None:
        log.info("nats_reconnected")
        self._absent = 0
        self._client.options["reconnect_time_wait"] = self._timings.reconnect_s
        for pull in self._pulls:
            pull.forget()

    # --------------------------------------------------------------------------------------------------- declarations

    async def declare(self, streams: Sequence[Stream] = STREAMS, *, replicas: int = 1, blobs_bytes: int = 0) -> None:
        """Create or update every stream and bucket. Safe to run from every service at once.

        `replicas`: copies of each in a cluster, at least: a service that was not told of them must not take them from the others.
        `blobs_bytes`: bound of the blob store; 0 leaves it as it is, for the same reason.
        """
        for stream in streams:
            config = _configuration(stream, replicas)
            await self.patiently(lambda config=config: self._declare_stream(config))
        for bucket, ttl_s in ((REPLICAS_BUCKET, REPLICA_TTL_S), (TASKS_BUCKET, 0.0), (HISTORY_BUCKET, 0.0)):
            await self.patiently(lambda bucket=bucket, ttl_s=ttl_s: self._declare_bucket(bucket, ttl_s, replicas))
        await self.patiently(lambda: self._declare_blobs(replicas))
        if blobs_bytes:
            await self.patiently(lambda: self._bound_blobs(blobs_bytes))
        most_s = self._timings.slowest_clock_s
        for slowest_s in (most_s, most_s, self._timings.answer_timeout_s):  # a rough clock rather than this host's
            if await self.patiently(lambda slowest_s=slowest_s: self._read_clock(slowest_s)):
                break

    async def _declare_stream(self, config: api.StreamConfig) -> None:
        assert config.name is not None and config.num_replicas is not None
        try:
            present = (await self._js.stream_info(config.name)).config.num_replicas or 1
            await self._js.update_stream(config.evolve(num_replicas=max(present, config.num_replicas)))
        except NotFoundError:
            await self._js.add_stream(config)

    async def renew(self, stream: Stream, *, first_sequence: int) -> None:
        """Delete a stream with all that it holds and remembers, message ids included, and begin it anew. Consumers go with it."""
        try:
            replicas = (await self._js.stream_info(stream.name)).config.num_replicas
            await self._js.delete_stream(stream.name)
            await self._js.add_stream(_configuration(stream, replicas or 1).evolve(first_seq=first_sequence))
        except (TimeoutError, NatsError, OSError) as error:
            raise Unavailable(f"could not begin stream {stream.name} anew: {error}") from None

    async def _declare_bucket(self, bucket: str, ttl_s: float, replicas: int) -> None:
        try:
            await self._js.key_value(bucket)
        except BucketNotFoundError:
            await self._js.create_key_value(api.KeyValueConfig(bucket=bucket, ttl=ttl_s, history=1, replicas=replicas))
        else:
            await self._replicate(f"KV_{bucket}", replicas)

    async def _declare_blobs(self, replicas: int) -> None:
        try:
            await self._js.object_store(BLOBS_BUCKET)
        except (BucketNotFoundError, NotFoundError):
            await self._js.create_object_store(BLOBS_BUCKET, config=api.ObjectStoreConfig(replicas=replicas))
        else:
            await self._replicate(f"OBJ_{BLOBS_BUCKET}", replicas)

    async def _bound_blobs(self, most_bytes: int) -> None:
        """Reserve so much of NATS's store for blobs, and no more: a full blob store must leave room for messages."""
        config = (await self._js.stream_info(f"OBJ_{BLOBS_BUCKET}")).config
        if config.max_bytes == most_bytes:
            return
        try:
            await self._js.update_stream(config.evolve(max_bytes=most_bytes))
        except APIError as error:
            if error.err_code != NO_ROOM:
                raise
            correct = "MARLAAS_NATS_BLOBS_BYTES, below max_file_store of NATS"
            log.error("blobs_not_bounded", bytes=most_bytes, reason=error.description, correct=correct)

    async def _replicate(self, stream: str, replicas: int) -> None:
        """Give an existing bucket's stream as many copies, where it has fewer."""
        config = (await self._js.stream_info(stream)).config
        if (config.num_replicas or 1) < replicas:
            await self._js.update_stream(config.evolve(num_replicas=replicas))

    async def patiently(self, action: Callable[[], Awaitable[T]]) -> T:
        """What `action` returns, tried until JetStream answers: it may be starting, or have more to do than it can answer in time.

        Raises: Fatal when a declaration is refused; Unavailable when this connection is closed.
        """
        attempt = 0
        while True:
            try:
                return await action()
            except (TimeoutError, NatsError, OSError, Unavailable) as error:
                attempt += 1
                if isinstance(error, APIError) and error.code == 400 and error.err_code != TOO_FEW_NODES and attempt >= 3:
                    raise Fatal(f"JetStream refuses the declaration: {error.description}") from None
                if self._client.is_closed:
                    raise Unavailable("the connection to NATS is closed") from None
                log.warning("jetstream_not_ready", attempt=attempt, error=str(error) or type(error).__name__)
                await asyncio.sleep(self._timings.backoff.pause_s(attempt))

    def blobs_context(self) -> JetStreamContext:
        """For `common.blobs`, the other half of this door."""
        return self._js

    # --------------------------------------------------------------------------------------------------------- publish

    async def publish(self, out: Outgoing) -> int:
        """Store `out` in its stream; returns its sequence, the first one's when it was there already.

        Raises: Unavailable when the server did not confirm within `Timings.publish_patience_s`; Reject when it is too large.
        """
        body = out.message.encode()
        headers = {KIND_HEADER: out.message.kind, TRACE_HEADER: _trace.get() or _new_trace(), **out.headers}
        return await self.publish_raw(out.subject, body, out.message_id, headers)

    async def publish_raw(self, subject: str, body: bytes, message_id: str, headers: Mapping[str, str]) -> int:
        """As `publish`, for a body that is already encoded."""
        refuse_oversize(subject, body, headers)
        started = time.monotonic()
        attempt = 0
        for pull in self._pulls:
            await pull.acknowledge()
        while True:
            try:
                ack = await self._js.publish(
                    subject, body, timeout=self._timings.answer_timeout_s, headers={**headers, "Nats-Msg-Id": message_id}
                )
                metrics.PUBLISHED.labels(subject.split(".")[0]).inc()
                return ack.seq
            except (BadSubjectError, BadHeaderError) as error:
                raise Reject(f"{subject} cannot be published: {error}") from None
            except (TimeoutError, NatsError, OSError) as error:
                attempt += 1
                if time.monotonic() - started > self._timings.publish_patience_s:
                    raise Unavailable(f"NATS did not store {subject}: {error}") from None
                log.warning("publish_retried", subject=subject, attempt=attempt, error=str(error) or type(error).__name__)
                await asyncio.sleep(self._timings.backoff.pause_s(attempt))

    # --------------------------------------------------------------------------------------------------------- consume

    async def consume(self, consumer: Consumer, handler: Handler, slots: Slots, *, most: int = 64) -> None:
        """Hand each message to `handler` in a runner of its own, `slots` at once, until cancelled.

        `most` bounds one pull, so that replicas share a burst. Raises: Fatal from a handler.
        """
        async with self._pulling(consumer) as pull, asyncio.TaskGroup() as runners:
            slots.when_released(pull.wake)
            tending = runners.create_task(pull.tend())
            try:
                while True:
                    for message in await pull.receive(lambda: min(slots.free, most)):
                        slots.take()
                        runners.create_task(self._handle(pull, message, handler, slots))
            finally:
                # Before the runners are cancelled: what they give back must not come to this replica again.
                await asyncio.shield(pull.stop())
                tending.cancel()

    async def consume_batches(self, consumer: Consumer, handler: BatchHandler, *, most: int, spacing_s: float = 0.0) -> None:
        """Hand messages to `handler` in lists of `most` at most, one list at a time, until cancelled.

        Lists begin at least `spacing_s` apart, or AT_REST times what the last one took where that is longer (with a pause of
        REST_MOST_S at most): nothing waits in a quiet system, and in a busy one a list is longer, so that one transaction serves more.
        When a list fails, each of its messages is tried by itself, so that a bad one harms no other.
        """
        async with self._pulling(consumer) as pull, asyncio.TaskGroup() as runners:
            tending = runners.create_task(pull.tend())
            not_before = 0.0
            try:
                while True:
                    messages = await pull.receive(lambda: most - pull.held)
                    if (early_s := not_before - time.monotonic()) > 0:
                        await asyncio.sleep(early_s)
                        messages += pull.take()
                    began = time.monotonic()
                    not_before = began + spacing_s  # also where the list fails
                    deliveries = [_delivery(message) for message in messages]
                    if all(delivery.attempt <= consumer.max_deliveries for delivery in deliveries):
                        try:
                            await handler(deliveries)
                            not_before = began + spaced(spacing_s, time.monotonic() - began)
                            crashpoints.reached("before_ack")
                            for message in messages:
                                pull.done(message)
                            continue
                        except Fatal:
                            raise
                        except Exception as error:
                            if len(messages) == 1 and not isinstance(error, MarlaasError):
                                log.exception("handler_failed", consumer=consumer.name)
                            elif len(messages) > 1:
                                reason = str(error) or type(error).__name__
                                log.warning("handled_one_by_one", consumer=consumer.name, messages=len(messages), reason=reason)
                    for message in messages:
                        await self._handle(pull, message, _one_by_one(handler), None)
            finally:
                await asyncio.shield(pull.stop())
                await asyncio.shield(pull.give_back())
                tending.cancel()

    @asynccontextmanager
    async def _pulling(self, consumer: Consumer) -> AsyncGenerator["_Pull"]:
        await self.patiently(lambda: self._declare_consumer(consumer))
        pull = _Pull(self._client, self._beats, self._timings, consumer, lambda: self.patiently(lambda: self._declare_consumer(consumer)))
        await pull.start()
        self._pulls.append(pull)
        try:
            yield pull
        finally:
            self._pulls.remove(pull)
            await asyncio.shield(pull.acknowledge())

    async def _declare_consumer(self, consumer: Consumer) -> None:
        await self._js.add_consumer(
            consumer.stream,
            api.ConsumerConfig(
                durable_name=consumer.name,
                filter_subject=consumer.subject,
                ack_policy=api.AckPolicy.EXPLICIT,
                ack_wait=consumer.ack_wait_s,
                max_deliver=-1,
                max_ack_pending=-1,
                headers_only=consumer.headers_only or None,
            ),
        )

    async def _handle(self, pull: "_Pull", message: Msg, handler: Handler, slots: Slots | None) -> None:
        consumer = pull.consumer
        delivery = _delivery(message)
        trace = _trace.set(delivery.headers.get(TRACE_HEADER) or _new_trace())
        started = time.monotonic()
        outcome = "done"
        try:
            with structlog.contextvars.bound_contextvars(**_bindings(delivery, consumer)):
                try:
                    if delivery.attempt > consumer.max_deliveries:
                        raise Reject(f"delivered {delivery.attempt - 1} times without an answer; it may kill the process that handles it")
                    await self._treat(delivery, handler)
                    crashpoints.reached("before_ack")
                    pull.done(message)
                except asyncio.CancelledError:
                    outcome = "returned"
                    await asyncio.shield(pull.again(message, delay_s=0))
                    raise
                except Fatal as error:
                    outcome = "fatal"
                    log.error("fatal", error=str(error))
                    pull.ask_no_more()  # or the message would come here again, while this process ends
                    await pull.again(message, delay_s=0)
                    raise
                except Reject as error:
                    outcome = "rejected"
                    await self._bury(pull, message, delivery, str(error))
                except Retry as error:
                    outcome = "retried"
                    if delivery.attempt >= consumer.max_attempts:
                        await self._bury(pull, message, delivery, f"gave up after {delivery.attempt} attempts: {error}")
                    else:
                        log.warning("message_retried", reason=str(error), attempt=delivery.attempt, delay_s=error.delay_s)
                        await pull.again(message, delay_s=jittered(error.delay_s))
                except Exception as error:
                    outcome = "failed"
                    log.exception("handler_failed", attempt=delivery.attempt)
                    if delivery.attempt >= consumer.max_attempts:
                        await self._bury(pull, message, delivery, f"{type(error).__name__}: {error}")
                    else:
                        await pull.again(message, delay_s=self._timings.backoff.pause_s(delivery.attempt))
        finally:
            _trace.reset(trace)
            metrics.HANDLED.labels(consumer.stage, outcome).inc()
            metrics.HANDLING_S.labels(consumer.stage).observe(time.monotonic() - started)
            if slots is not None:
                slots.release()

    async def _treat(self, delivery: Delivery, handler: Handler) -> None:
        """Publish what the handler yields; begins again, for as long as it takes, while a server is away."""
        waits = 0
        while True:
            try:
                async with aclosing(cast(AsyncGenerator[Outgoing], handler(delivery))) as results:
                    async for out in results:
                        crashpoints.reached("before_publish")
                        await self.publish(out)
                return
            except Unavailable as error:
                waits += 1
                log.warning("server_away", reason=str(error), waits=waits)
                notice_cancellation()
                await asyncio.sleep(self._timings.backoff.pause_s(waits))

    async def _bury(self, pull: "_Pull", message: Msg, delivery: Delivery, reason: str) -> None:
        """Keep a message that cannot be handled, with the reason, where people and the scheduler see it."""
        consumer = pull.consumer
        log.error("dead_letter", subject=delivery.subject, reason=reason)
        task = token(delivery.subject, consumer.task_token)
        letter = DeadLetter(
            stage=consumer.stage,
            subject=delivery.subject,
            reason=reason,
            attempts=delivery.attempt,
            headers=dict(delivery.headers),
            body=delivery.body if len(delivery.body) <= MAX_BURIED_BYTES else b"",
            sequence=delivery.sequence,
        )
        told = Outgoing(failed(consumer.stage, task or "none"), letter, f"failed:{consumer.name}:{delivery.sequence}")
        try:
            try:
                await self.publish(told)
            except Reject:  # its headers are what is too large, or what no client can write
                await self.publish(replace(told, message=letter.model_copy(update={"headers": {}, "body": b""})))
        except Retry as error:  # NATS is away: the message comes again, and ends here again
            log.warning("message_retried", reason=str(error), attempt=delivery.attempt, delay_s=error.delay_s)
            await pull.again(message, delay_s=error.delay_s)
        else:
            await pull.finish(message)

    # ---------------------------------------------------------------------------------------------------------- follow

    async def follow(self, stream: Stream, subject: str, *, last_only: bool = False, new_only: bool = False) -> AsyncIterator[Delivery]:
        """Messages of a limits stream on `subject`, oldest first, then as they come; nothing is acknowledged or removed.

        `last_only` starts with the last of each subject; `new_only` with the next that arrives.
        """
        policy = api.DeliverPolicy.LAST_PER_SUBJECT if last_only else api.DeliverPolicy.NEW if new_only else api.DeliverPolicy.ALL

        async def subscribe() -> JetStreamContext.PushSubscription:
            config = api.ConsumerConfig(deliver_policy=policy)  # nats-py fills it in: a new one for each attempt
            return await self._js.subscribe(
                subject, stream=stream.name, ordered_consumer=True, idle_heartbeat=self._timings.idle_heartbeat_s, config=config
            )

        subscription = await self.patiently(subscribe)
        try:
            async for message in subscription.messages:
                yield _delivery(message)
        finally:
            with suppress(NatsError, asyncio.TimeoutError):
                await subscription.unsubscribe()

    async def read(self, stream: Stream, sequence: int) -> Delivery:
        """One stored message, body included. Raises: LookupError when it was deleted; Unavailable when NATS does not answer."""
        try:
            try:
                stored = await self._js.get_msg(stream.name, sequence, direct=True)
            except NotFoundError:  # any node of a cluster answers, also one that the message has not reached; now its leader must
                stored = await self._js.get_msg(stream.name, sequence)
        except NotFoundError:
            raise LookupError(f"message {sequence} is no longer in stream {stream.name}") from None
        except (TimeoutError, NatsError, OSError) as error:
            raise Unavailable(f"could not read message {sequence} of {stream.name}: {error}") from None
        return Delivery(stored.subject or "", stored.headers or {}, stored.data or b"", sequence, attempt=0)

    async def last(self, stream: Stream, subject: str) -> Delivery | None:
        """The newest stored message on exactly `subject`. Raises: Unavailable when NATS does not answer."""
        try:
            stored = await self._js.get_last_msg(stream.name, subject)  # not direct: a node may not have the newest yet
        except NotFoundError:
            return None
        except (TimeoutError, NatsError, OSError) as error:
            raise Unavailable(f"could not read the last message on {subject}: {error}") from None
        return Delivery(stored.subject or "", stored.headers or {}, stored.data or b"", stored.seq or 0, attempt=0)

    async def stored(self, stream: Stream, subject: str) -> AsyncIterator[Delivery]:
        """Messages stored on `subject`, oldest first; acknowledges nothing. Raises: Unavailable when NATS does not answer."""
        sequence = 1
        while True:
            try:
                found = await self._js.get_msg(stream.name, sequence, subject, direct=True, next=True)
            except NotFoundError:
                return
            except (TimeoutError, NatsError, OSError) as error:
                raise Unavailable(f"could not read {subject}: {error}") from None
            assert found.seq is not None
            yield Delivery(found.subject or "", found.headers or {}, found.data or b"", found.seq, attempt=0)
            sequence = found.seq + 1

    async def subjects(self, stream: Stream, subject: str = ">") -> dict[str, int]:
        """How many messages a stream holds, by subject. Raises: Unavailable when NATS does not answer."""
        try:
            return (await self._js.stream_info(stream.name, subjects_filter=subject)).state.subjects or {}
        except (TimeoutError, NatsError, OSError) as error:
            raise Unavailable(f"could not list the subjects of {stream.name}: {error}") from None

    async def purge(self, stream: Stream, subject: str, *, before: int | None = None) -> None:
        """Delete stored messages on `subject`, those below sequence `before` only where it is given."""
        try:
            await self._js.purge_stream(stream.name, subject=subject, seq=before)
        except (TimeoutError, NatsError, OSError) as error:
            raise Unavailable(f"could not purge {subject}: {error}") from None

    async def acknowledged(self, consumer: Consumer) -> int:
        """Last sequence that `consumer` acknowledged, with all before it; 0 at first. Raises: Unavailable when NATS does not answer."""
        try:
            floor = (await self._js.consumer_info(consumer.stream, consumer.name)).ack_floor
        except NotFoundError:
            return 0
        except (TimeoutError, NatsError, OSError) as error:
            raise Unavailable(f"could not look at consumer {consumer.name}: {error}") from None
        return floor.stream_seq if floor else 0

    async def backlog(self, stream: Stream) -> int:
        """How many messages a stream holds."""
        return (await self._js.stream_info(stream.name)).state.messages

    # ---------------------------------------------------------------------------------------------------------- values

    async def put_value(self, bucket: str, key: str, value: Message) -> None:
        """Set a key-value entry, readable as JSON by any NATS client."""
        store = await self._bucket(bucket)
        await store.put(key, value.model_dump_json().encode())

    async def get_value(self, bucket: str, key: str, model: type[M]) -> M | None:
        """None when there is no such entry. Raises: Unavailable when NATS does not answer."""
        found = await self.find_value(bucket, key, model)
        return found.value if found else None

    async def find_value(self, bucket: str, key: str, model: type[M]) -> "Revised[M] | None":
        """As `get_value`, with the revision that `replace_value` wants."""
        try:
            entry = await (await self._bucket(bucket)).get(key)
        except KeyNotFoundError:
            return None
        except (TimeoutError, NatsError, OSError) as error:
            raise Unavailable(f"could not read {key} of {bucket}: {error}") from None
        return Revised(model.decode(entry.value or b""), entry.revision or 0)

    async def replace_value(self, bucket: str, key: str, value: Message, *, revision: int) -> int:
        """Set an entry that still has `revision`, 0 where there must be none; returns its new one.

        Raises: Retry when somebody else has set it; Unavailable when NATS is, and then it may be set or not.
        """
        try:
            return await (await self._bucket(bucket)).update(key, value.model_dump_json().encode(), last=revision)
        except KeyWrongLastSequenceError:
            raise Retry(f"{key} of {bucket} was set by another process") from None
        except (TimeoutError, NatsError, OSError) as error:
            raise Unavailable(f"could not set {key} of {bucket}: {error}") from None

    async def all_values(self, bucket: str, model: type[M]) -> list[M]:
        """Every current entry."""
        store = await self._bucket(bucket)
        found: list[M] = []
        for _ in range(EMPTY_LOOKS):
            found = await self._present(store, bucket, model)
            # Its client says "that was all" when it is told that nothing is left before what is on its way has come.
            if found or not (await store.status()).values:
                break
        return found

    async def _present(self, store: KeyValue, bucket: str, model: type[M]) -> list[M]:
        watcher = await store.watchall(ignore_deletes=True, inactive_threshold=self._timings.reader_s)
        found: list[M] = []
        try:
            async for entry in watcher:
                if entry is None:
                    break
                try:
                    found.append(model.decode(entry.value or b""))
                except Reject as error:
                    log.warning("value_unreadable", bucket=bucket, key=entry.key, error=str(error))
        finally:
            await watcher.stop()
        return found

    async def delete_value(self, bucket: str, key: str) -> None:
        with suppress(KeyNotFoundError, NatsError):
            await (await self._bucket(bucket)).delete(key)

    async def watch_values(self, bucket: str, model: type[M]) -> AsyncIterator[tuple[str, M | None]]:
        """(key, value) of every entry, then of every change; None when deleted. Entries that expire say nothing."""

        async def watch() -> KeyValue.KeyWatcher:
            return await (await self._bucket(bucket)).watchall()

        watcher = await self.patiently(watch)
        try:
            async for entry in watcher:
                if entry is None:
                    continue
                try:
                    yield entry.key, model.decode(entry.value) if entry.operation is None and entry.value else None
                except Reject as error:  # whoever wrote it must not stop those who watch the others
                    log.warning("value_unreadable", bucket=bucket, key=entry.key, error=str(error))
        finally:
            await watcher.stop()

    async def _bucket(self, bucket: str) -> KeyValue:
        """Looked up once. Raises: BucketNotFoundError; Unavailable when NATS is."""
        if bucket in self._buckets:
            return self._buckets[bucket]
        try:
            found = self._buckets[bucket] = await self._js.key_value(bucket)
            return found
        except BucketNotFoundError:
            raise
        except (TimeoutError, NatsError, OSError) as error:
            raise Unavailable(f"could not open bucket {bucket}: {error}") from None


_Identity = tuple[int, datetime]
"""Sequence of a message in its stream, and when it was stored."""


class _Pull:
    """Asks a consumer for messages, as many as there is room for, and has those under work kept alive until they are acknowledged.

    nats-py's own `fetch` can leave a pull open behind it; messages would then arrive that nobody keeps alive.
    """

    def __init__(
        self, client: Client, beats: Heartbeats, timings: Timings, consumer: Consumer, redeclare: Callable[[], Awaitable[None]]
    ) -> None:
        self.consumer = consumer
        self._timings = timings
        self._client = client
        self._beats = beats
        self._beat_s = consumer.ack_wait_s / BEATS_A_LEASE
        self._redeclare = redeclare
        self._inbox = client.new_inbox()
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{consumer.stream}.{consumer.name}"
        self._arrived: deque[Msg] = deque()
        self._woken = asyncio.Event()
        self._asked = 0
        self._asked_at = 0.0
        self._missing = False
        self._ending = False
        self._known: dict[_Identity, Msg] = {}
        """What has arrived and was not given back or acknowledged yet."""
        self._held: dict[_Identity, Msg] = {}
        self._done: list[Msg] = []
        """Not acknowledged yet."""
        self._any_done = asyncio.Event()

    @property
    def held(self) -> int:
        return len(self._held)

    async def start(self) -> None:
        self._beats.start(self._beat_s)
        self._subscription = await self._client.subscribe(self._inbox, cb=self._on_message)

    def ask_no_more(self) -> None:
        self._ending = True

    async def stop(self) -> None:
        """Stop asking and give back what arrived but was not begun."""
        self.ask_no_more()
        with suppress(NatsError, OSError, TimeoutError):
            if self._client.is_connected:
                async with asyncio.timeout(self._timings.last_word_s):
                    await self._subscription.drain()  # what is on its way still comes, or it would wait for the end of its lease
            else:
                await self._subscription.unsubscribe()
        while self._arrived:
            await self.again(self._arrived.popleft(), delay_s=0)
        await self.acknowledge()

    async def give_back(self) -> None:
        """What is in hand goes to whoever asks next."""
        for message in list(self._held.values()):
            await self.again(message, delay_s=0)

    def forget(self) -> None:
        """The server no longer knows what was asked of it."""
        self._asked = 0
        self._woken.set()

    def wake(self) -> None:
        """There may be more room than there was."""
        self._woken.set()

    async def receive(self, room: Callable[[], int]) -> list[Msg]:
        """At least one message, at most `room()`; looks again when it is woken."""
        while True:
            notice_cancellation()
            if self._missing:
                self._missing = False
                await self._redeclare()
            if self._arrived:
                return self.take()
            await self._ask(room())
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timings.pull_expires_s):
                    await self._woken.wait()
            self._woken.clear()

    def take(self) -> list[Msg]:
        """What has arrived, into hand."""
        found = list(self._arrived)
        self._arrived.clear()
        self._held.update((_identity(message), message) for message in found)
        return found

    async def _ask(self, room: int) -> None:
        if time.monotonic() - self._asked_at > self._timings.pull_expires_s + self._timings.lost_pull_s:
            self._asked = 0
        wanted = room - self._asked
        # Not for each message that came: half of what there is room for is still asked for.
        if wanted <= 0 or 2 * self._asked > room or self._ending or not self._client.is_connected:
            return
        self._asked += wanted
        self._asked_at = time.monotonic()
        request = json.dumps({"batch": wanted, "expires": int(self._timings.pull_expires_s * 1e9)}).encode()
        with suppress(NatsError, OSError):
            await self._client.publish(self._next, request, reply=self._inbox)

    async def _on_message(self, message: Msg) -> None:
        status = (message.headers or {}).get("Status")
        if status is None:
            self._asked = max(0, self._asked - 1)
            self._arrive(message)
        elif status != "100":
            pending = (message.headers or {}).get("Nats-Pending-Messages")
            self._asked = max(0, self._asked - int(pending)) if pending else 0
            if status == "503" or "Consumer Deleted" in (message.headers or {}).get("Description", ""):
                self._missing = True
        self._woken.set()

    def _arrive(self, message: Msg) -> None:
        """Into the queue, unless it is here already: its lease ended while NATS could not be reached. The newest delivery is answered."""
        known = self._known.setdefault(_identity(message), message)
        if known is message:
            self._arrived.append(message)
        else:
            self._beats.release(known.reply)
            known.reply = message.reply
            log.warning("message_redelivered_to_its_holder", subject=message.subject, consumer=self.consumer.name)
        self._beats.hold(message.reply, self._beat_s)

    async def tend(self) -> None:
        """Acknowledge what is done, and keep alive what is not, until cancelled."""
        async with asyncio.TaskGroup() as runners:
            runners.create_task(self._keep_alive())
            runners.create_task(self._acknowledge_soon())

    async def _acknowledge_soon(self) -> None:
        while True:
            notice_cancellation()
            await self._any_done.wait()
            await asyncio.sleep(ACKNOWLEDGE_WITHIN_S)
            await self.acknowledge()

    async def acknowledge(self) -> None:
        """All that is done. A lost answer means one more delivery, which every handler takes."""
        done, self._done = self._done, []
        self._any_done.clear()
        for message in done:
            self._forget(message)
            with suppress(NatsError, OSError):
                await message.ack()

    async def _keep_alive(self) -> None:
        """Show that the event loop turns; send the heartbeats where their own connection cannot be made."""
        while True:
            notice_cancellation()
            self._beats.turned()
            await asyncio.sleep(self._beat_s)
            if not self._beats.is_connected:
                await beat(self._client, self._beats.due())

    def done(self, message: Msg) -> None:
        """Acknowledge it, within ACKNOWLEDGE_WITHIN_S or with the next message that is published."""
        self._held.pop(_identity(message), None)
        self._done.append(message)
        self._any_done.set()

    async def finish(self, message: Msg) -> None:
        await self._settle(message, message.term)

    async def again(self, message: Msg, *, delay_s: float) -> None:
        await self._settle(message, lambda: message.nak(delay=delay_s or None))

    async def _settle(self, message: Msg, answer: Callable[[], Awaitable[None]]) -> None:
        self._held.pop(_identity(message), None)
        self._forget(message)
        # A lost answer means one more delivery, which every handler takes.
        with suppress(NatsError, OSError):
            await answer()

    def _forget(self, message: Msg) -> None:
        self._known.pop(_identity(message), None)
        self._beats.release(message.reply)


def spaced(spacing_s: float, took_s: float) -> float:
    """Seconds from the begin of a piece of work that took `took_s` to the next one's."""
    return max(spacing_s, min(AT_REST * took_s, took_s + REST_MOST_S)) if spacing_s else 0.0


def refuse_oversize(subject: str, body: bytes, headers: Mapping[str, str]) -> None:
    """Raises: Reject when the bus would not take such a message."""
    size = len(body) + HEADER_BYTES + sum(len(name) + len(value) + 4 for name, value in headers.items())
    if size > MAX_PAYLOAD_BYTES:
        raise Reject(f"{headers.get(KIND_HEADER, 'a message')} for {subject} has {size} bytes; the bus takes {MAX_PAYLOAD_BYTES}")


def _configuration(stream: Stream, replicas: int) -> api.StreamConfig:
    return api.StreamConfig(
        name=stream.name,
        subjects=list(stream.subjects),
        retention=api.RetentionPolicy(stream.retention),
        storage=api.StorageType.FILE,
        max_msgs_per_subject=stream.max_per_subject,
        max_age=stream.max_age_s,
        duplicate_window=stream.duplicate_window_s,
        num_replicas=replicas,
        allow_direct=True,
    )


def _one_by_one(handler: BatchHandler) -> Handler:
    async def handle(delivery: Delivery) -> AsyncIterator[Outgoing]:
        await handler([delivery])
        return
        yield  # makes this an async generator, as handlers are

    return handle


def _identity(message: Msg) -> _Identity:
    """The same for all deliveries of a message, and for no other, also where NATS was restored to an older backup."""
    return message.metadata.sequence.stream, message.metadata.timestamp


async def _beating(url: str, name: str, timings: Timings) -> Client:
    """A connection for heartbeats. The errors that it meets are those of the other connection, which reports them."""

    async def reported_elsewhere(_: Exception) -> None:
        pass

    client = Client()
    await client.connect(
        _nodes(url),
        name=f"{name}-heartbeats",
        connect_timeout=timings.connect_timeout_s,  # pyright: ignore[reportArgumentType]  # any number of seconds
        max_reconnect_attempts=-1,
        reconnect_time_wait=timings.reconnect_s,  # pyright: ignore[reportArgumentType]
        ping_interval=timings.ping_every_s,  # pyright: ignore[reportArgumentType]
        max_outstanding_pings=timings.pings_unanswered,
        error_cb=reported_elsewhere,
    )
    return client


def _delivery(message: Msg) -> Delivery:
    try:
        metadata = message.metadata
        sequence, attempt = metadata.sequence.stream, metadata.num_delivered
    except NatsError:
        sequence, attempt = 0, 0
    return Delivery(message.subject, message.headers or {}, message.data, sequence, attempt)


def _bindings(delivery: Delivery, consumer: Consumer) -> dict[str, str]:
    bound = {"stage": consumer.stage, "trace": delivery.headers.get(TRACE_HEADER, "")[3:35]}
    if task := token(delivery.subject, consumer.task_token):
        bound["task"] = task
        if trajectory := token(delivery.subject, consumer.task_token + 1):
            bound["trajectory"] = trajectory
    return bound


def _new_trace() -> str:
    """A W3C trace context: everything that follows from one message shares it."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def objection_to_address(url: str) -> str | None:
    """Why `url` names no NATS servers; None when it does. nats-py's own objection would look like a server that is away."""
    schemes = {_scheme(node) for node in _nodes(url)}
    if schemes and any(schemes <= kind for kind in SCHEMES):
        return None
    shown = _without_password(url)
    return f"'{shown}' is no address of NATS; one looks like nats://host:4222, or nats://user:password@host:4222"


def _scheme(node: str) -> str | None:
    """Of one server's address, where scheme and port may be left out; None when it is none."""
    try:
        parts = urlsplit(node if "://" in node else f"nats://{node}")
        return parts.scheme if parts.hostname and parts.port != 0 else None
    except ValueError:  # a port that is no number, or above 65535
        return None


def _nodes(url: str) -> list[str]:
    """The servers that a setting names."""
    return [node.strip() for node in url.split(",") if node.strip()]


def _without_password(url: str) -> str:
    return ",".join(re.sub(r"^(.*://)?.*@", r"\1", node) for node in _nodes(url))
