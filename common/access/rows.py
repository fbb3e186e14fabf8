"""A line of an access table, and the subjects that NATS must permit for it."""

from dataclasses import dataclass, replace
from enum import StrEnum

from common.streams import Consumer, failed

API = "$JS.API"
ACK = "$JS.ACK"
FLOW = "$JS.FC"
BLOBS = "$O"


class Use(StrEnum):
    """What a user does with a subject, a stream or a consumer."""

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
    """Subjects that the user must be permitted to publish: JetStream's requests are messages too."""
    subscribe: tuple[str, ...] = ()


@dataclass(frozen=True)
class Permissions:
    """What a user's key permits; all else is refused."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    inbox: str
    """Prefix of its reply subjects."""
    may_respond: bool = False
    """Whether it may answer each request that it receives."""


def publishes(*subjects: str) -> list[Row]:
    return [Row(Use.PUBLISH, subject, publish=(subject,)) for subject in subjects]


def subscribes(subject: str) -> Row:
    return Row(Use.SUBSCRIBE, subject, subscribe=(subject,))


def consumes(consumer: Consumer) -> list[Row]:
    """Take messages of one consumer, and report those that cannot be handled.

    The filter is part of the subject, so that a user cannot point its consumer at another family of messages.
    """
    place = f"{consumer.stream}.{consumer.name}"
    requests = (f"{API}.CONSUMER.CREATE.{place}.{consumer.subject}", f"{API}.CONSUMER.MSG.NEXT.{place}", f"{ACK}.{place}.>")
    return [Row(Use.CONSUME, consumer.name, publish=requests), *publishes(failed(consumer.stage, "*"))]


def consumes_all(stream: str, *examples: Consumer) -> list[Row]:
    """Take messages of any named consumer of a stream. `examples`: some of them. A request names the filter where there is a single one."""
    single = (f"{API}.CONSUMER.CREATE.{stream}.{each.name}.{each.subject}" for each in examples if not each.also)
    requests = (f"{API}.CONSUMER.CREATE.{stream}.*", f"{API}.CONSUMER.MSG.NEXT.{stream}.*", f"{ACK}.{stream}.>", *single)
    taken = [Row(Use.CONSUME, example.name, publish=requests) for example in examples]
    return taken + publishes(*(failed(example.stage, "*") for example in examples))


def follows(stream: str) -> Row:
    """Read a stream with an unnamed consumer of one's own. What it filters is in the request's body, which NATS does not compare.

    The server stops to send, after some megabytes, until the client has answered its request for flow control.
    """
    return Row(Use.FOLLOW, stream, publish=(f"{API}.CONSUMER.CREATE.{stream}", f"{FLOW}.{stream}.>"))


def reads(stream: str) -> Row:
    """Read single stored messages, by number or the last of a subject.

    Not by `DIRECT.GET`: its answer is the message itself, and NATS publishes it on any reply subject that the request names, so that a
    key could have what it has stored in one stream stored in every other. An answer of `MSG.GET` is JSON, which is no message.
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
    """Delete stored messages; those behind buckets by their key only."""
    single = () if stream.startswith(bucket("")) else (f"{API}.STREAM.MSG.DELETE.{stream}",)
    return Row(Use.PURGE, stream, publish=(f"{API}.STREAM.PURGE.{stream}", *single))


def recreates(stream: str) -> Row:
    """Delete a stream with all that it stores."""
    return Row(Use.RECREATE, stream, publish=(f"{API}.STREAM.DELETE.{stream}",))


def owns_each(stream: str, consumer: Consumer) -> list[Row]:
    """Make, look at and delete streams of which there is one a tenant, and take the messages of a consumer that has one name in all.

    A stream's name is one token, so that NATS can be told of no part of it: the consumer's name and filter are what is permitted.
    """
    requests = {Use.DECLARE: f"{API}.STREAM.CREATE.*", Use.RECREATE: f"{API}.STREAM.DELETE.*"}
    found = [lists(stream), *(Row(use, stream, publish=(request,)) for use, request in requests.items())]
    return found + consumes(replace(consumer, stream="*"))


def lists(stream: str) -> Row:
    """Read which streams there are, with their configurations and numbers of messages."""
    return Row(Use.INSPECT, stream, publish=(f"{API}.STREAM.LIST",))


def bucket(name: str) -> str:
    """Stream behind a key-value bucket."""
    return f"KV_{name}"


def blob_store(name: str) -> str:
    """Stream behind an object store."""
    return f"OBJ_{name}"


def watches(name: str) -> list[Row]:
    """Read all values of a bucket, and follow it: nats-py asks how many there are."""
    counts = Row(Use.FOLLOW, bucket(name), publish=(f"{API}.CONSUMER.INFO.{bucket(name)}.*",))
    return [inspects(bucket(name)), reads(bucket(name)), follows(bucket(name)), counts]


def looks_up(name: str) -> list[Row]:
    """Read single values of a bucket."""
    return [inspects(bucket(name)), reads(bucket(name))]


def fetches_blobs(name: str) -> list[Row]:
    return [inspects(blob_store(name)), reads(blob_store(name))]


def lists_blobs(name: str) -> list[Row]:
    """nats-py asks which stream has the entries, and follows it."""
    return [*fetches_blobs(name), follows(blob_store(name)), Row(Use.INSPECT, "names of streams", publish=(f"{API}.STREAM.NAMES",))]


def stores_blobs(name: str) -> list[Row]:
    """nats-py purges the chunks of a blob that could not be stored."""
    purge = Row(Use.PURGE, blob_store(name), publish=(f"{API}.STREAM.PURGE.{blob_store(name)}",))
    return [*publishes(f"{BLOBS}.{name}.>"), purge]


def permissions(rows: list[Row], inbox: str, *, may_respond: bool = False) -> Permissions:
    """What the rows stand for together, sorted, each subject once."""
    publish = sorted({subject for row in rows for subject in row.publish})
    subscribe = sorted({f"{inbox}.>", *(subject for row in rows for subject in row.subscribe)})
    return Permissions(tuple(publish), tuple(subscribe), inbox, may_respond)
