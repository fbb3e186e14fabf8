"""Declarations, all idempotent: the scheduler declares streams and buckets at its start, and each service its consumers."""

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
from nats.js import api
from nats.js.errors import APIError, BucketNotFoundError, NotFoundError

from common.bus.transport.connection import Connection, unavailable_as
from common.errors import Undeclared
from common.streams import BLOBS_BUCKET, BUCKETS, JOBS, Bucket, Consumer, Stream, bound_of

STORE_TOO_SMALL = 10047
"""JetStream's error code for a limit larger than its store has left."""
CORRECT = "more max_file_store of NATS, or less MARLAAS_NATS_STREAMS_BYTES or MARLAAS_NATS_BLOBS_BYTES: both are reserved in it"
PERMITTED_S = 60.0
"""Seconds before the declaration of a consumer that the key does not permit is retried."""
ROOM = 0.5
"""Maximum fill level at which a new limit is applied, as a share of the limit: a fuller stream might exceed the limit meanwhile, and lose
messages."""
LAST = JOBS
"""Stream that is declared last: if it exists, the others do."""

BOUNDS = ("retention", "discard", "discard_new_per_subject", "max_msgs_per_subject", "max_bytes", "max_msg_size", "max_age")
"""Settings of a stream that limit it."""

log = structlog.get_logger()


class Declarations:
    def __init__(self, connection: Connection) -> None:
        self._js = connection.js
        self._retry_until_ready = connection.retry_until_ready
        self._backoff = connection.timings.backoff

    async def declare(self, streams: Sequence[Stream], *, replicas: int, blobs_bytes: int, streams_bytes: int) -> None:
        """See `Bus.declare`."""
        bounds: list[tuple[str, api.DiscardPolicy, int]] = []
        for bucket in BUCKETS:
            await self._retry_until_ready(lambda bucket=bucket: self._bucket(bucket, replicas))
            bounds.append((_behind(bucket), api.DiscardPolicy.NEW, bound_of(bucket, streams_bytes)))
        await self._retry_until_ready(lambda: self._blobs(replicas))
        if blobs_bytes:
            await self._retry_until_ready(lambda: self._bound_blobs(blobs_bytes))
        for stream in sorted(streams, key=LAST.__eq__):
            config = _configuration(stream, replicas)
            await self._retry_until_ready(lambda config=config: self._stream(config))
            if stream.share:
                bounds.append((stream.name, _when_full(stream), bound_of(stream, streams_bytes)))
        if streams_bytes:
            await self._set_bounds(bounds)

    async def _set_bounds(self, bounds: Sequence[tuple[str, api.DiscardPolicy, int]]) -> None:
        """Apply limits, each a stream's name, discard policy and maximum bytes. One error names all streams for which NATS's store has no
        room."""
        refused: dict[str, str] = {}
        for name, discard, max_bytes in bounds:
            found = await self._retry_until_ready(partial(self._bound, name, discard, max_bytes))
            if found is not None:
                refused[name] = found
        if refused:
            needed, reason = sum(max_bytes for *_, max_bytes in bounds), next(iter(refused.values()))
            log.error("streams_not_bounded", streams=sorted(refused), bytes=needed, reason=reason, correct=CORRECT)

    async def differences(self, streams: Sequence[Stream], buckets: Sequence[Bucket] = ()) -> dict[str, list[str]]:
        """Limits of stored streams and buckets that differ from their declarations, each with both values, by stream.

        Sizes in bytes are not compared, because they depend on the deployment; but if any stream has a size limit, all must have one.
        Raises: Unavailable.
        """
        with unavailable_as("look at the streams"):
            present = {stream: await self._present(stream.name) for stream in streams}
            behind = {bucket: await self._present(_behind(bucket)) for bucket in buckets}
        sized = any(config is not None and _bound(config.max_bytes) for config in present.values())
        found = {stream.name: _differences(stream, config, sized=sized) for stream, config in present.items()}
        return found | {_behind(bucket): _bucket_differences(bucket, config, sized=sized) for bucket, config in behind.items()}

    async def _present(self, stream: str) -> api.StreamConfig | None:
        with suppress(NotFoundError):
            return (await self._js.stream_info(stream)).config
        return None

    async def wait(self) -> None:
        """Wait until some process has completed `declare` in this store."""
        for attempt in itertools.count(1):
            try:
                await self._retry_until_ready(self._declared)
                return
            except LookupError:
                log.warning("streams_not_declared", attempt=attempt, next="a scheduler declares them at its start; is there one?")
                await asyncio.sleep(self._backoff.pause_s(attempt))

    async def _declared(self) -> None:
        """Check for the stream that is declared last. Raises: LookupError if it does not exist."""
        try:
            await self._js.stream_info(LAST.name)
        except NotFoundError:
            raise LookupError(LAST.name) from None

    async def declare_consumer(self, consumer: Consumer) -> None:
        config = api.ConsumerConfig(
            name=consumer.name,  # with it the request's subject contains the filter, so that NATS can permit this consumer alone
            durable_name=consumer.name,
            filter_subject=None if consumer.also else consumer.subject,
            filter_subjects=[consumer.subject, consumer.also] if consumer.also else None,
            inactive_threshold=consumer.unused_s,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=consumer.ack_wait_s,
            max_deliver=-1,
            max_ack_pending=-1,
            headers_only=consumer.headers_only or None,
        )
        await self._retry_until_ready(lambda: self._js.add_consumer(consumer.stream, config))

    async def declare_when_permitted(self, consumer: Consumer) -> None:
        """Declare a consumer without which the process can work; retry while the key does not permit it. A key older than the pools file
        may be replaced by one that does."""
        while True:
            try:
                return await self.declare_consumer(consumer)
            except Undeclared as error:
                log.warning("consumer_not_permitted", consumer=consumer.name, stream=consumer.stream, reason=str(error))
                await asyncio.sleep(PERMITTED_S)

    async def add(self, stream: Stream, *, like: Stream) -> None:
        """Create a missing stream, with as many replicas as `like` has. Raises: Undeclared."""

        async def add() -> None:
            replicas = (await self._js.stream_info(like.name)).config.num_replicas or 1
            await self._js.add_stream(_configuration(stream, replicas))

        await self._retry_until_ready(add)

    async def recreate(self, stream: Stream, *, first_sequence: int) -> None:
        """Delete a stream with its messages, message ids and consumers, and create it empty.

        Raises: Unavailable if NATS does not answer.
        """
        with unavailable_as(f"recreate stream {stream.name}"):
            present = (await self._js.stream_info(stream.name)).config
            await self._js.delete_stream(stream.name)
            config = _configuration(stream, present.num_replicas or 1).evolve(max_bytes=present.max_bytes, discard=present.discard)
            await self._js.add_stream(config.evolve(first_seq=first_sequence))

    async def _stream(self, config: api.StreamConfig) -> None:
        assert config.name is not None and config.num_replicas is not None
        try:
            present = (await self._js.stream_info(config.name)).config
        except NotFoundError:
            await self._js.add_stream(config)
            return
        config = config.evolve(
            num_replicas=max(present.num_replicas or 1, config.num_replicas),
            max_bytes=present.max_bytes,
            discard=present.discard if (present.max_bytes or -1) > 0 else config.discard,
        )
        if config.discard_new_per_subject and not present.discard_new_per_subject and await self._is_filled(config):
            log.warning("bound_postponed", stream=config.name, messages=config.max_msgs_per_subject, until="the next start of a service")
            names = ("max_msgs_per_subject", "discard", "discard_new_per_subject")
            config = config.evolve(**{name: getattr(present, name) for name in names})
        if (found := await self._update(config)) is not None:
            log.error("stream_not_updated", stream=config.name, reason=found, correct=CORRECT)

    async def _update(self, config: api.StreamConfig) -> str | None:
        """Update a stream. Returns None, or the reason why it stays unchanged: NATS refuses any change while more is reserved than its
        store has."""
        try:
            await self._js.update_stream(config)
        except APIError as error:
            if error.err_code != STORE_TOO_SMALL:
                raise
            return error.description or "no room"
        return None

    async def _is_filled(self, config: api.StreamConfig) -> bool:
        """Whether a subject has too many messages for the new limit. NATS applies it to stored messages too, and so could drop some."""
        assert config.name is not None
        stored = (await self._js.stream_info(config.name, subjects_filter=">")).state.subjects or {}
        return max(stored.values(), default=0) > ROOM * (config.max_msgs_per_subject or 0)

    async def _bound(self, name: str, discard: api.DiscardPolicy, max_bytes: int) -> str | None:
        """Reserve `max_bytes` of NATS's store for a stream; returns the reason if there is no room for it.

        A stream filled close to the new limit keeps its old one until a later start.
        """
        info = await self._js.stream_info(name)
        if info.config.max_bytes == max_bytes and info.config.discard == discard:
            return None
        if info.state.bytes > ROOM * max_bytes:
            log.warning("bound_postponed", stream=name, bytes=info.state.bytes, bound=max_bytes, until="the next start of a service")
            return None
        return await self._update(info.config.evolve(max_bytes=max_bytes, discard=discard))

    async def _bucket(self, bucket: Bucket, replicas: int) -> None:
        name, size = _behind(bucket), bucket.max_value_bytes
        try:
            await self._js.key_value(bucket.name)
        except BucketNotFoundError:
            wanted = api.KeyValueConfig(bucket=bucket.name, ttl=bucket.ttl_s, history=1, replicas=replicas, max_value_size=size)
            await self._js.create_key_value(wanted)
            return
        await self._replicate(name, replicas)
        config = (await self._js.stream_info(name)).config
        if config.max_msg_size != size:
            await self._js.update_stream(config.evolve(max_msg_size=size))

    async def _blobs(self, replicas: int) -> None:
        try:
            await self._js.object_store(BLOBS_BUCKET)
        except (BucketNotFoundError, NotFoundError):
            await self._js.create_object_store(BLOBS_BUCKET, config=api.ObjectStoreConfig(replicas=replicas))
        else:
            await self._replicate(f"OBJ_{BLOBS_BUCKET}", replicas)

    async def _bound_blobs(self, max_bytes: int) -> None:
        """Limit the blob store to `max_bytes`: a full blob store must leave room for messages."""
        config = (await self._js.stream_info(f"OBJ_{BLOBS_BUCKET}")).config
        if config.max_bytes == max_bytes:
            return
        if (found := await self._update(config.evolve(max_bytes=max_bytes))) is not None:
            log.error("blobs_not_bounded", bytes=max_bytes, reason=found, correct="MARLAAS_NATS_BLOBS_BYTES, below max_file_store of NATS")

    async def _replicate(self, stream: str, replicas: int) -> None:
        """Raise an existing bucket's number of replicas to `replicas`."""
        config = (await self._js.stream_info(stream)).config
        if (config.num_replicas or 1) < replicas:
            await self._js.update_stream(config.evolve(num_replicas=replicas))


def _bound(value: Any) -> Any:
    """The limit, or None for "unlimited", for which the server has several values. `Any`: a number, a text or a boolean."""
    return None if value in (-1, 0) else value


def _when_full(stream: Stream) -> api.DiscardPolicy:
    """Discard policy of a stream that has a size limit."""
    return api.DiscardPolicy.OLD if stream.drops_oldest else api.DiscardPolicy.NEW


def _differences(stream: Stream, present: api.StreamConfig | None, *, sized: bool) -> list[str]:
    if present is None:
        return ["it is not there"]
    here, declared = ({name: _bound(getattr(config, name)) for name in BOUNDS} for config in (present, _configuration(stream, 1)))
    if sized and stream.share:
        share = here["max_bytes"] or "a share of MARLAAS_NATS_STREAMS_BYTES"
        declared |= {"max_bytes": share, "discard": _when_full(stream)}
    differ = [name for name in BOUNDS if here[name] != declared[name]]
    return [f"{name} is {_shown(here[name])}, declared is {_shown(declared[name])}" for name in differ]


def _bucket_differences(bucket: Bucket, present: api.StreamConfig | None, *, sized: bool) -> list[str]:
    if present is None:
        return ["it is not there"]
    found = []
    if sized and not _bound(present.max_bytes):
        found.append("max_bytes is none, declared is a share of MARLAAS_NATS_STREAMS_BYTES")
    if present.max_msg_size != bucket.max_value_bytes:
        found.append(f"max_msg_size is {_shown(_bound(present.max_msg_size))}, declared is {bucket.max_value_bytes}")
    return found


def _behind(bucket: Bucket) -> str:
    """Name of the stream behind a bucket."""
    return f"KV_{bucket.name}"


def _shown(bound: Any) -> str:
    """Text of a limit in a message. `Any`: as in `_bound`."""
    return str(getattr(bound, "value", bound) or "none")


def _configuration(stream: Stream, replicas: int) -> api.StreamConfig:
    return api.StreamConfig(
        name=stream.name,
        subjects=list(stream.subjects),
        retention=api.RetentionPolicy(stream.retention),
        storage=api.StorageType.FILE,
        max_msgs=stream.max_messages,
        max_msgs_per_subject=stream.max_per_subject,
        max_msg_size=stream.max_message_bytes,
        discard=api.DiscardPolicy.NEW if stream.refuses else api.DiscardPolicy.OLD,
        discard_new_per_subject=stream.refuses,
        republish=api.RePublish(src=JOBS.subjects[0], dest=stream.announced, headers_only=True) if stream.announced else None,
        subject_transform=api.SubjectTransform(*stream.stored_as) if stream.stored_as else None,
        first_seq=stream.first_sequence,
        max_age=stream.max_age_s,
        duplicate_window=stream.duplicate_window_s,
        num_replicas=replicas,
    )
