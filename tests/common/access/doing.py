"""All that a row of the tables permits, done by the doors of `common.bus` and `common.blobs`."""

import base64
import hashlib
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from common import streams
from common.access.rows import Row, Use, blob_store, bucket
from common.blobs import Blobs
from common.bus import Bus, Delivery, NoResponder, Outgoing, Slots
from common.errors import Reject, Retry, Unavailable
from common.messages import BlobRef, ReplicaReport
from common.streams import Consumer, Stream
from tests.support.matching import covers
from tests.support.waiting import at_work, eventually

FILLING_BYTES = 500_000
FILLINGS = 10
"""Messages in each followed stream: 5 MB, more than what a server sends without an answer to its flow control."""
REPORT = ReplicaReport(replica="one", service="env")
LARGE = REPORT.model_copy(update={"replica": "x" * FILLING_BYTES})
BUCKETS = {bucket(each.name): each for each in streams.BUCKETS}
OF_ACME = streams.own_jobs("acme").name
STREAMS = {each.name: each for each in streams.STREAMS}
CONSUMERS = {
    each.name: each
    for each in (
        *(one for one in vars(streams).values() if isinstance(one, Consumer)),
        *(make(family) for make in (streams.env_checks, streams.env_opens, streams.env_turns) for family in ("math", "module", "own")),
        *(make(queue) for make in (streams.rollout_samples, streams.trainer_batches) for queue in ("tiny", "tiny@a", "tiny@b")),
        streams.env_packages("own"),
        streams.rollout_serves("tiny"),
        streams.scheduler_jobs("acme"),
        streams.scheduler_own_jobs("acme"),
    )
}


def filled(pattern: str, tail: str = "x") -> str:
    """A subject that `pattern` stands for."""
    return pattern.replace("<tenant>", "acme").replace("*", "acme").replace(">", tail)


async def fill(stages: Bus) -> BlobRef:
    """Store so much in all that is followed that a server asks for flow control. `stages`: may do everything."""
    for stream in streams.STREAMS:
        if stream.retention == "limits":
            for number in range(FILLINGS):
                subject = filled(stream.subjects[0], f"fill{number}")
                await stages.publish_raw(subject, bytes(FILLING_BYTES), f"fill:{subject}", {})
    for number in range(FILLINGS):  # entries of blobs that are not there
        entry = base64.urlsafe_b64encode(b"absent%d" % number).decode()
        body = {
            "name": f"absent{number}",
            "bucket": streams.BLOBS_BUCKET,
            "nuid": "",
            "size": 0,
            "chunks": 1,
            "description": "x" * FILLING_BYTES,
        }
        await stages.publish_raw(f"$O.{streams.BLOBS_BUCKET}.M.{entry}", json.dumps(body).encode(), entry, {})
    for each in streams.BUCKETS:
        await fill_bucket(stages, each.name)
    await stages.own_jobs.declare(["acme"])
    content = bytes(range(256)) * 4096 * 9
    ref = blob_of(content)
    await Blobs(stages).put(ref, content)
    return ref


async def fill_bucket(stages: Bus, name: str) -> None:
    for number in range(FILLINGS):
        await stages.kv.put(name, f"fill.{number}", LARGE)


def blob_of(content: bytes) -> BlobRef:
    digest = hashlib.sha256(content).hexdigest()
    return BlobRef(name=f"task.v1.adapter-{digest[:16]}", size_bytes=len(content), sha256=digest)


class Broken(io.BytesIO):
    """A file that cannot be read: nats-py then purges what it has stored of it."""

    def readinto(self, _: object) -> int:
        raise OSError("broken")


class Doing:
    """One service's work. `stages`: a connection that may do everything, for what others send."""

    def __init__(self, bus: Bus, stages: Bus, blob: BlobRef) -> None:
        self._bus, self._stages, self._blob, self._blobs = bus, stages, blob, Blobs(bus)

    async def use(self, row: Row) -> None:
        doing: dict[Use, Callable[[str], object]] = {
            Use.PUBLISH: self._publish,
            Use.SUBSCRIBE: self._subscribe,
            Use.CONSUME: lambda name: self._consume(CONSUMERS[filled(name)]),
            Use.FOLLOW: self._follow,
            Use.READ: self._read,
            Use.INSPECT: self._inspect,
            Use.DECLARE: self._declare,
            Use.PURGE: self._purge,
            Use.RECREATE: self._recreate,
        }
        await doing[row.use](row.target)  # type: ignore[misc]

    async def _publish(self, pattern: str) -> None:
        subject = filled(pattern)
        if any(covers(stream.subjects, subject) for stream in streams.STREAMS) or subject.startswith("$KV."):
            await self._bus.publish(Outgoing(subject, REPORT, f"done:{subject}"))
        elif subject.startswith("$O."):
            content = f"small of {self._bus.key}".encode()
            await self._blobs.put(blob_of(content), content)
        elif subject.startswith("ask."):
            with suppress(NoResponder):
                await self._bus.requests.ask(subject, REPORT, timeout_s=50)
        else:
            await self._bus.requests.send(subject, REPORT)

    async def _subscribe(self, pattern: str) -> None:
        async with self._bus.requests.listening(pattern):
            pass

    async def _consume(self, consumer: Consumer) -> None:
        """Acknowledge one message, retry it once before, and make another a dead letter."""
        ended: list[str] = []
        retried: list[str] = []

        async def handler(delivery: Delivery) -> AsyncIterator[Outgoing]:
            if delivery.subject.endswith("bad") and delivery.subject not in ended:
                ended.append(delivery.subject)
                raise Reject("bad")
            if not retried:
                retried.append(delivery.subject)
                raise Retry("once", delay_s=0.01)
            ended.append(delivery.subject)
            return
            yield

        tails = ("good", "bad") if consumer.subject.endswith(">") else ("good",)
        async with at_work(self._bus.consume(consumer, handler, Slots(4))) as consuming:  # type: ignore[arg-type]
            for tail in tails:
                subject = filled(consumer.subject, f"t.{tail}")
                if consumer.stream == OF_ACME:
                    subject = streams.from_tenant("acme", subject)
                await self._stages.publish(Outgoing(subject, REPORT, f"consumed:{consumer.name}:{tail}"))
            await eventually(lambda: consuming.done() or (len(ended) >= len(tails) and not self._bus.held(consumer)))
            assert not consuming.done(), consuming.exception()

    async def _follow(self, store: str) -> None:
        seen = 0
        if store == blob_store(streams.BLOBS_BUCKET):
            await self._blobs.listed()
        elif store in BUCKETS:
            await fill_bucket(self._stages, BUCKETS[store].name)  # its values may have expired
            async for key, _ in self._bus.kv.watch(BUCKETS[store].name, ReplicaReport):
                if (seen := seen + key.startswith("fill")) == FILLINGS:
                    return
        else:
            async for delivery in self._bus.streams.follow(STREAMS[store], filled(STREAMS[store].subjects[0], ">")):
                if (seen := seen + ("fill" in delivery.subject)) == FILLINGS:
                    return

    async def _read(self, store: str) -> None:
        if store == blob_store(streams.BLOBS_BUCKET):
            assert len(await self._blobs.fetch(self._blob)) == self._blob.size_bytes
        elif store in BUCKETS:
            await self._bus.kv.find(BUCKETS[store].name, "fill.0", ReplicaReport)
        else:
            stream = STREAMS[store]
            with suppress(LookupError):
                await self._bus.streams.read(stream, 1)
            await self._bus.streams.last(stream, filled(stream.subjects[0]))
            async for _ in self._bus.streams.stored(stream, filled(stream.subjects[0])):
                break

    async def _inspect(self, what: str) -> None:
        if what in CONSUMERS:
            await self._bus.streams.queue(CONSUMERS[what])
        elif what == "names of streams":
            await self._blobs.listed()
        elif filled(what) == OF_ACME:
            assert await self._bus.own_jobs.waiting()
        else:
            await self._bus.streams.backlog(Stream(what, ()))

    async def _declare(self, store: str) -> None:
        await (self._bus.own_jobs.declare(["globex"]) if filled(store) == OF_ACME else self._bus.declare())

    async def _recreate(self, store: str) -> None:
        if filled(store) == OF_ACME:
            await self._bus.own_jobs.declare([], deleted=["acme"])
        else:
            await self._bus.declarations.recreate(STREAMS[store], first_sequence=100)

    async def _purge(self, store: str) -> None:
        if store == blob_store(streams.BLOBS_BUCKET):
            with suppress(Unavailable):
                await self._blobs.put(blob_of(b"broken"), Broken())
            if self._bus.key is not None and self._bus.key.name == "scheduler":
                await self._blobs.delete(self._blob.name)
        elif store in BUCKETS:
            await self._bus.kv.remove(BUCKETS[store].name, ["gone"])
        else:
            stream = STREAMS[store]
            subject = filled(stream.subjects[0], "purged")
            await self._stages.publish(Outgoing(subject, REPORT, f"purged:{subject}"))
            await self._bus.streams.erase(stream, subject)
            await self._bus.streams.purge(stream, subject)
