"""Reading streams without consuming them, deleting stored messages, and erasing their bytes from NATS's files (ADR 25).

Methods raise Unavailable if NATS does not answer.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from nats.errors import Error as NatsError
from nats.js import JetStreamContext, api
from nats.js.errors import APIError, NotFoundError

from common.bus.delivery import Delivery, delivery_of
from common.bus.transport.connection import Connection, unavailable_as
from common.streams import Consumer, Stream


@dataclass(frozen=True)
class FullStream:
    """A stream that may refuse messages: it has no room for one of the maximum size."""

    name: str
    used_bytes: int
    max_bytes: int
    oldest: str
    """Subject of the oldest message, whose consumer makes room; empty if it was consumed meanwhile."""


@dataclass(frozen=True)
class Queue:
    """Numbers of a consumer's messages; all 0 if the consumer is not declared."""

    pending: int
    """Messages never delivered."""
    unacknowledged: int
    """Messages delivered and not settled: a handler works on them, they were handed back, or their receiver has died."""
    delivered: int = 0
    """Deliveries so far, redeliveries included."""


class StreamReader:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._js = connection.js

    async def follow(self, stream: Stream, subject: str, *, last_only: bool = False) -> AsyncIterator[Delivery]:
        """Messages of a limits stream on `subject`, oldest first, then new ones as they arrive; nothing is acknowledged or removed.

        `last_only`: start with the last message of each subject.
        """
        policy = api.DeliverPolicy.LAST_PER_SUBJECT if last_only else api.DeliverPolicy.ALL

        async def subscribe() -> JetStreamContext.PushSubscription:
            config = api.ConsumerConfig(deliver_policy=policy)  # a new one for each attempt, because nats-py modifies it
            heartbeat_s = self._connection.timings.idle_heartbeat_s
            return await self._js.subscribe(subject, stream=stream.name, ordered_consumer=True, idle_heartbeat=heartbeat_s, config=config)

        subscription = await self._connection.retry_until_ready(subscribe)
        try:
            async for message in subscription.messages:
                yield delivery_of(message)
        finally:
            with suppress(NatsError, asyncio.TimeoutError):
                await subscription.unsubscribe()

    async def read(self, stream: Stream, sequence: int) -> Delivery:
        """One stored message, body included. Raises: LookupError if it was deleted."""
        with unavailable_as(f"read message {sequence} of {stream.name}"):
            try:
                stored = await self._js.get_msg(stream.name, sequence)
            except NotFoundError:
                raise LookupError(f"message {sequence} is no longer in stream {stream.name}") from None
        return Delivery(stored.subject or "", stored.headers or {}, stored.data or b"", sequence, attempt=0)

    async def last(self, stream: Stream, subject: str) -> Delivery | None:
        """The newest stored message on exactly `subject`; None if there is none."""
        with unavailable_as(f"read the last message on {subject}"):
            try:
                stored = await self._js.get_last_msg(stream.name, subject)
            except NotFoundError:
                return None
        return Delivery(stored.subject or "", stored.headers or {}, stored.data or b"", stored.seq or 0, attempt=0)

    async def stored(self, stream: Stream, subject: str) -> AsyncIterator[Delivery]:
        """Messages stored on `subject`, oldest first; acknowledges nothing."""
        sequence = 1
        while True:
            with unavailable_as(f"read {subject}"):
                try:
                    found = await self._js.get_msg(stream.name, sequence, subject, next=True)
                except NotFoundError:
                    return
            assert found.seq is not None
            yield Delivery(found.subject or "", found.headers or {}, found.data or b"", found.seq, attempt=0)
            sequence = found.seq + 1

    async def subjects(self, stream: Stream, subject: str = ">") -> dict[str, int]:
        """Number of stored messages by subject."""
        with unavailable_as(f"list the subjects of {stream.name}"):
            return (await self._js.stream_info(stream.name, subjects_filter=subject)).state.subjects or {}

    async def full(self, streams: Sequence[Stream]) -> list[FullStream]:
        """Those of the streams that may refuse messages, in the given order."""
        with unavailable_as("look at streams"):
            found = await asyncio.gather(*(self._full(stream) for stream in streams))
        return [one for one in found if one is not None]

    async def _full(self, stream: Stream) -> FullStream | None:
        info = await self._js.stream_info(stream.name)
        most, largest, used = info.config.max_bytes or -1, info.config.max_msg_size or -1, info.state.bytes
        if most <= 0 or info.config.discard != api.DiscardPolicy.NEW or used + max(largest, 0) <= most:
            return None
        oldest = ""
        with suppress(NotFoundError):
            oldest = (await self._js.get_msg(stream.name, info.state.first_seq)).subject or ""
        return FullStream(stream.name, used, most, oldest)

    async def purge(self, stream: Stream, subject: str, *, before: int | None = None) -> None:
        """Delete stored messages on `subject`; with `before`, only those below that sequence."""
        with unavailable_as(f"purge {subject}"):
            await self._js.purge_stream(stream.name, subject=subject, seq=before)

    async def erase(self, stream: Stream, subject: str) -> int:
        """Delete stored messages on `subject` one by one; returns their number. This overwrites their bytes, which `purge` leaves in NATS's
        files, and takes some milliseconds per message.
        """
        erased, sequence = 0, 1
        with unavailable_as(f"erase {subject}"):
            while True:
                try:
                    found = await self._js.get_msg(stream.name, sequence, subject, next=True)
                except NotFoundError:
                    return erased
                assert found.seq is not None
                await erase_message(self._js, stream.name, found.seq)
                erased, sequence = erased + 1, found.seq + 1

    async def erase_one(self, stream: Stream, sequence: int) -> None:
        """Delete a stored message and overwrite its bytes; does nothing if it is gone."""
        with unavailable_as(f"erase message {sequence} of {stream.name}"):
            await erase_message(self._js, stream.name, sequence)

    async def begin_block(self, stream: Stream) -> None:
        """Make NATS append to a new file, so that it removes the bytes of deleted messages from older files.

        NATS removes a file without messages, even the file that it appends to. A file of which less than half is messages is compacted
        within two minutes, but never the file that NATS appends to.
        """
        with unavailable_as(f"fill {stream.name}"):
            if (await self._js.stream_info(stream.name)).state.messages:
                await fill(self._js, stream.filling)
                await self._js.purge_stream(stream.name, subject=stream.filling)

    async def acknowledged(self, consumer: Consumer) -> int:
        """Last sequence up to which `consumer` has acknowledged all messages; 0 at first."""
        with unavailable_as(f"look at consumer {consumer.name}"):
            try:
                floor = (await self._js.consumer_info(consumer.stream, consumer.name)).ack_floor
            except NotFoundError:
                return 0
        return floor.stream_seq if floor else 0

    async def queue(self, consumer: Consumer) -> Queue:
        """Numbers of a consumer's messages, by one request: nats-py's own method takes longer than the server does. Raises:
        Unavailable."""
        subject = f"$JS.API.CONSUMER.INFO.{consumer.stream}.{consumer.name}"
        with unavailable_as(f"look at consumer {consumer.name}"):
            answer = json.loads((await self._connection.client.request(subject, timeout=self._connection.timings.answer_timeout_s)).data)
        return Queue(answer.get("num_pending", 0), answer.get("num_ack_pending", 0), answer.get("delivered", {}).get("consumer_seq", 0))

    async def backlog(self, stream: Stream) -> int:
        """Number of messages in a stream. Raises: NATS's own errors."""
        return (await self._js.stream_info(stream.name)).state.messages


FILLING_BYTES = 1024 * 1024
FILLINGS = 9
"""Number of messages that exceed one file of NATS's store, which has at most 8 MiB."""


async def erase_message(js: JetStreamContext, stream: str, sequence: int) -> None:
    """Delete a message and overwrite its bytes; does nothing if it is gone. Raises: NATS's own errors."""
    try:
        await js.delete_msg(stream, sequence)
    except APIError:
        with suppress(NotFoundError):
            await js.get_msg(stream, sequence)
            raise


async def fill(js: JetStreamContext, subject: str, headers: dict[str, str] | None = None) -> None:
    """Store empty messages larger than one file of NATS's store in total. Raises: NATS's own errors."""
    for _ in range(FILLINGS):
        await js.publish(subject, bytes(FILLING_BYTES), headers=headers)
