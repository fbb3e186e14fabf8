"""One line of an access table, and the subjects that NATS must permit for it.

Each function is named, and described, by what its row permits.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from common.streams import Consumer, failed

API = "$JS.API"
ACK = "$JS.ACK"
FLOW = "$JS.FC"
BLOBS = "$O"


class Use(StrEnum):
    """Use of a subject, a stream or a consumer."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    CONSUME = "consume"
    FOLLOW = "follow"
    READ = "read"
    INSPECT = "inspect"
    DECLARE = "declare"
    PURGE = "purge"
    RECREATE = "recreate"


@dataclass(frozen=True)
class Row:
    """One permission of one user."""

    use: Use
    target: str
    """Subject, stream, or consumer."""
    publish: tuple[str, ...] = ()
    """Subjects that the user must be permitted to publish; JetStream requests are messages too."""
    subscribe: tuple[str, ...] = ()


@dataclass(frozen=True)
class Permissions:
    """Permissions of a user's key; everything else is refused."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    inbox: str
    """Prefix of the key's reply subjects."""
    may_respond: bool = False
    """Whether the user may reply to each request that it receives."""


def publishes(*subjects: str) -> list[Row]:
    return [Row(Use.PUBLISH, subject, publish=(subject,)) for subject in subjects]


def subscribes(subject: str) -> Row:
    return Row(Use.SUBSCRIBE, subject, subscribe=(subject,))


def consumes(consumer: Consumer) -> list[Row]:
    """Take messages of one consumer, and publish dead letters for those that cannot be handled.

    The consumer's filter is part of the request's subject, so that a user cannot change its consumer to another family of messages.
    """
    place = f"{consumer.stream}.{consumer.name}"
    requests = (f"{API}.CONSUMER.CREATE.{place}.{consumer.subject}", f"{API}.CONSUMER.MSG.NEXT.{place}", f"{ACK}.{place}.>")
    return [Row(Use.CONSUME, consumer.name, publish=requests), *publishes(failed(consumer.stage, "*"))]


def consumes_all(stream: str, *examples: Consumer) -> list[Row]:
    """Take messages of any named consumer of a stream. `examples`: some of these consumers. If an example has only one filter, the subject
    of the request that creates it ends with this filter."""
    single = (f"{API}.CONSUMER.CREATE.{stream}.{each.name}.{each.subject}" for each in examples if not each.also)
    requests = (f"{API}.CONSUMER.CREATE.{stream}.*", f"{API}.CONSUMER.MSG.NEXT.{stream}.*", f"{ACK}.{stream}.>", *single)
    taken = [Row(Use.CONSUME, example.name, publish=requests) for example in examples]
    return taken + publishes(*(failed(example.stage, "*") for example in examples))


def follows(stream: str) -> Row:
    """Read a stream with an ephemeral consumer. The consumer's filter is in the request's body, which NATS does not check.

    The row also permits answers to flow-control requests: without them, the server stops sending after some megabytes.
    """
    return Row(Use.FOLLOW, stream, publish=(f"{API}.CONSUMER.CREATE.{stream}", f"{FLOW}.{stream}.>"))


def reads(stream: str) -> Row:
    """Read single stored messages, by sequence or the last of a subject.

    The request `DIRECT.GET` is not permitted. Its answer is the stored message, which NATS publishes on any reply subject that the request
    names: a key could copy its messages from one stream into every other. `MSG.GET` answers in JSON, which is not a valid message.
    """
    return Row(Use.READ, stream, publish=(f"{API}.STREAM.MSG.GET.{stream}",))


def inspects(stream: str) -> Row:
    """Read a stream's configuration, its number of messages, and their subjects."""
    return Row(Use.INSPECT, stream, publish=(f"{API}.STREAM.INFO.{stream}",))


def inspects_consumer(consumer: Consumer) -> Row:
    """Read how many messages wait for a consumer."""
    return Row(Use.INSPECT, consumer.name, publish=(f"{API}.CONSUMER.INFO.{consumer.stream}.{consumer.name}",))


def declares(stream: str) -> Row:
    return Row(Use.DECLARE, stream, publish=(f"{API}.STREAM.CREATE.{stream}", f"{API}.STREAM.UPDATE.{stream}"))


def purges(stream: str) -> Row:
    """Delete stored messages, singly or by subject; in streams behind buckets, only by subject, which contains the key."""
    single = () if stream.startswith(bucket("")) else (f"{API}.STREAM.MSG.DELETE.{stream}",)
    return Row(Use.PURGE, stream, publish=(f"{API}.STREAM.PURGE.{stream}", *single))


def recreates(stream: str) -> Row:
    """Delete a stream with its messages, to create it again. (`declares` permits the creation.)"""
    return Row(Use.RECREATE, stream, publish=(f"{API}.STREAM.DELETE.{stream}",))


def owns_each(stream: str, consumer: Consumer) -> list[Row]:
    """Create, inspect and delete the per-tenant streams, and take messages of a consumer that has the same name in each.

    A stream's name is one token, and NATS cannot match part of a token. So the permission names any stream, but only this consumer and its
    filter.
    """
    requests = {Use.DECLARE: f"{API}.STREAM.CREATE.*", Use.RECREATE: f"{API}.STREAM.DELETE.*"}
    found = [lists(stream), *(Row(use, stream, publish=(request,)) for use, request in requests.items())]
    return found + consumes(replace(consumer, stream="*"))


def lists(stream: str) -> Row:
    """List streams, with their configurations and numbers of messages."""
    return Row(Use.INSPECT, stream, publish=(f"{API}.STREAM.LIST",))


def bucket(name: str) -> str:
    """Name of the stream behind a key-value bucket."""
    return f"KV_{name}"


def blob_store(name: str) -> str:
    """Name of the stream behind an object store."""
    return f"OBJ_{name}"


def watches(name: str) -> list[Row]:
    """Read all values of a bucket, and follow it. Includes a request for the number of values, which nats-py sends."""
    counts = Row(Use.FOLLOW, bucket(name), publish=(f"{API}.CONSUMER.INFO.{bucket(name)}.*",))
    return [inspects(bucket(name)), reads(bucket(name)), follows(bucket(name)), counts]


def looks_up(name: str) -> list[Row]:
    """Read single values of a bucket."""
    return [inspects(bucket(name)), reads(bucket(name))]


def fetches_blobs(name: str) -> list[Row]:
    return [inspects(blob_store(name)), reads(blob_store(name))]


def lists_blobs(name: str) -> list[Row]:
    """List blobs. nats-py requests the name of the stream that contains the blobs' entries, and follows this stream."""
    return [*fetches_blobs(name), follows(blob_store(name)), Row(Use.INSPECT, "names of streams", publish=(f"{API}.STREAM.NAMES",))]


def stores_blobs(name: str) -> list[Row]:
    """Store blobs. Includes a purge, with which nats-py deletes the chunks of a blob that could not be stored."""
    purge = Row(Use.PURGE, blob_store(name), publish=(f"{API}.STREAM.PURGE.{blob_store(name)}",))
    return [*publishes(f"{BLOBS}.{name}.>"), purge]


def permissions(rows: list[Row], inbox: str, *, may_respond: bool = False) -> Permissions:
    """Union of the rows' permissions, sorted, without duplicates."""
    publish = sorted({subject for row in rows for subject in row.publish})
    subscribe = sorted({f"{inbox}.>", *(subject for row in rows for subject in row.subscribe)})
    return Permissions(tuple(publish), tuple(subscribe), inbox, may_respond)
