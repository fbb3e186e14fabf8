"""Streams and buckets, with their bounds; what a subject is about, and the subjects of what is stored about a task or a tenant."""

from dataclasses import dataclass, replace
from typing import Literal

from common.streams.subjects import check_package, from_tenant, package_checked, samples, serve

DAY_S = 86_400.0
KIND_HEADER = "Marlaas-Kind"
SETTLEMENT_HEADER = "Marlaas-Settlement"
REPLICAS_BUCKET = "replicas"
REPLICA_TTL_S = 10.0
TASKS_BUCKET = "tasks"
BLOBS_BUCKET = "blobs"
HISTORY_BUCKET = "history"
HTTP_KEYS_BUCKET = "http-keys"
HTTP_USE_BUCKET = "http-use"
HTTP_USE_TTL_S = 120.0
"""More than the minute that limits look back over."""
ALIASES_BUCKET = "aliases"
LEASES_BUCKET = "leases"
LEASE_TTL_S = 15.0
"""Seconds after which a lease that is not renewed is free."""
CLOCKS_BUCKET = "pools"


@dataclass(frozen=True)
class Stream:
    """A JetStream stream. Work queues drop a message once it is acknowledged; limits streams keep it."""

    name: str
    subjects: tuple[str, ...]
    retention: Literal["workqueue", "limits"] = "workqueue"
    max_per_subject: int = -1
    """Maximum messages of one subject. A new one drops the oldest, or is refused where `refuses` says so."""
    max_messages: int = -1
    """Maximum messages in all; a new one is refused where `refuses` says so."""
    refuses: bool = False
    stored_as: tuple[str, str] | None = None
    """Subject of an arriving message, as a pattern, and the one that it is stored under."""
    first_sequence: int | None = None
    announced: str = ""
    """Subject, for NATS's core, of the headers of each message once it is stored; empty: it is not announced."""
    max_age_s: float = 0.0
    """0: no limit. Backlogs are bounded by admission, not by dropping messages."""
    share: float = 0.0
    """Of the bytes that all streams together may have (`MARLAAS_NATS_STREAMS_BYTES`)."""
    drops_oldest: bool = False
    """What a full stream does. True: it drops the oldest message, which PostgreSQL has the content or the record of. False: it refuses."""
    max_message_bytes: int = 8 * 1024 * 1024
    duplicate_window_s: float = 120.0

    @property
    def filling(self) -> str:
        """Subject of messages without content, in streams whose files are begun anew; no consumer takes it."""
        return f"filling.{self.name}"


@dataclass(frozen=True)
class Bucket:
    """A key-value bucket: one value a key. A full one refuses new keys, and values that are larger than those they replace."""

    name: str
    share: float
    """Of the bytes that all streams and buckets together may have."""
    ttl_s: float = 0.0
    """Seconds that a value is kept; 0: until it is deleted."""
    max_value_bytes: int = 2 * 1024 * 1024


MAX_WAITING_JOBS = 100
"""Jobs of one tenant, verb and key that wait or are handled; NATS refuses more, and takes those of others."""
STORED_JOBS = "stored.*.jobs.>"
"""By the stream that has stored one."""
JOBS = Stream("JOBS", ("jobs.>",), share=0.05, max_per_subject=MAX_WAITING_JOBS, refuses=True, announced="stored.JOBS.jobs.>")
MAX_OWN_JOBS = 2 * MAX_WAITING_JOBS
"""The same of one tenant, all verbs and keys together. No bytes are reserved: those of a thousand tenants would be the whole store."""
OWN_JOBS = "JOBS_"
FIRST_OWN_JOB = 2**40
"""Sequence of a tenant's first job in its own stream: with the tenant's name, a sequence names one job there and in JOBS."""


def own_jobs(tenant: str) -> Stream:
    """Jobs that keys of the tenant have sent: what JetStream compares and answers, such as message ids and sequences, is the tenant's own.

    JOBS has those of the operators, and all where NATS wants no keys.
    """
    arrives, stored = from_tenant(tenant, "jobs.>"), JOBS.subjects[0]
    return replace(
        JOBS,
        name=f"{OWN_JOBS}{tenant}",
        subjects=(arrives,),
        share=0.0,
        max_messages=MAX_OWN_JOBS,
        stored_as=(arrives, stored),
        announced=f"stored.{OWN_JOBS}{tenant}.{stored}",
        first_sequence=FIRST_OWN_JOB,
    )


def is_own_job(sequence: int) -> bool:
    """Whether a tenant's key has sent the job with this sequence; otherwise an operator, or any client where NATS wants no keys."""
    return sequence >= FIRST_OWN_JOB


def tenant_of(stream: str) -> str:
    """Inverse of `own_jobs`, of a name; empty for another stream's."""
    return stream.removeprefix(OWN_JOBS) if stream.startswith(OWN_JOBS) else ""


PROMPTS = Stream("PROMPTS", ("prompts.check.>", "prompts.package.>", "prompts.open.>", "prompts.sample.>", "filling.PROMPTS"), share=0.17)
TURNS = Stream("TURNS", ("trajectories.turn.>", "trajectories.checked.>", "trajectories.package.>", "filling.TURNS"), share=0.2)
SCORED = Stream("SCORED", ("trajectories.scored.>", "filling.SCORED"), retention="limits", share=0.215)
BATCHES = Stream("BATCHES", ("trajectories.batch.>", "filling.BATCHES"), share=0.05)
WEIGHTS = Stream("WEIGHTS", ("weight-updated.>",), retention="limits", max_per_subject=8, share=0.05)
EVENTS = Stream("EVENTS", ("events.>",), retention="limits", max_per_subject=10_000, max_age_s=30 * DAY_S, share=0.08, drops_oldest=True)
SAMPLES = Stream(
    "SAMPLES",
    ("samples.>",),
    retention="limits",
    max_per_subject=1,
    max_age_s=30 * DAY_S,
    share=0.02,
    drops_oldest=True,
)
FAILED = Stream("FAILED", ("failed.>",), retention="limits", max_age_s=30 * DAY_S, share=0.04, drops_oldest=True)
REQUESTS = Stream("REQUESTS", ("prompts.serve.>", "filling.REQUESTS"), max_age_s=600.0, share=0.03)
"""Requests to versions, of all gateways together: more are refused, and none takes room from training. Nobody waits for one as long."""
SERVED = Stream("SERVED", ("served.>",), max_age_s=3 * DAY_S, share=0.02)
LEASES = Stream("LEASES", ("leases.order.>", "leases.done.>"), retention="limits", max_per_subject=64, max_age_s=DAY_S, share=0.005)
"""Orders to executors of shared accelerators, of which the last counts, and what became of them."""
STREAMS = (JOBS, PROMPTS, TURNS, SCORED, BATCHES, WEIGHTS, EVENTS, FAILED, REQUESTS, SERVED, SAMPLES, LEASES)
REPLICAS = Bucket(REPLICAS_BUCKET, share=0.005, ttl_s=REPLICA_TTL_S)
TASKS = Bucket(TASKS_BUCKET, share=0.035)
HISTORY = Bucket(HISTORY_BUCKET, share=0.005)
HTTP_KEYS = Bucket(HTTP_KEYS_BUCKET, share=0.005)
HTTP_USE = Bucket(HTTP_USE_BUCKET, share=0.005, ttl_s=HTTP_USE_TTL_S)
ALIASES = Bucket(ALIASES_BUCKET, share=0.005)
LEASE_HOLDERS = Bucket(LEASES_BUCKET, share=0.005, ttl_s=LEASE_TTL_S)
CLOCKS = Bucket(CLOCKS_BUCKET, share=0.005)
BUCKETS = (REPLICAS, TASKS, HISTORY, HTTP_KEYS, HTTP_USE, ALIASES, LEASE_HOLDERS, CLOCKS)
MIN_STREAM_BYTES = 32 * 1024 * 1024
"""Lowest bound of a stream: four of the largest messages."""
MIN_BUCKET_BYTES = 8 * 1024 * 1024
"""The same of a bucket: four of its largest values."""


def bound_of(store: Stream | Bucket, streams_bytes: int) -> int:
    """Bytes of one stream or bucket, of those that all together may have."""
    return max(int(streams_bytes * store.share), MIN_BUCKET_BYTES if isinstance(store, Bucket) else MIN_STREAM_BYTES)


def reserved_bytes(streams_bytes: int) -> int:
    """What NATS reserves for all streams and buckets: more than `streams_bytes` where these are few."""
    return sum(bound_of(store, streams_bytes) for store in (*STREAMS, *BUCKETS))


IN_FLIGHT = (PROMPTS, TURNS, SCORED, BATCHES)
"""Streams whose every message is about one task, and useless once that has ended."""
BETWEEN_SERVICES = (*IN_FLIGHT, WEIGHTS)
"""Streams whose senders wait where they are full."""


def in_flight(task: str) -> list[tuple[Stream, str]]:
    """Queued messages of one task: (stream, subject filter), for purging a cancelled task."""
    return [
        (PROMPTS, f"prompts.check.*.{task}"),
        (PROMPTS, f"prompts.open.*.{task}.>"),
        (PROMPTS, f"prompts.sample.*.{task}.>"),
        (TURNS, f"trajectories.turn.*.{task}.>"),
        (SCORED, f"trajectories.scored.{task}.>"),
        (BATCHES, f"trajectories.batch.*.{task}"),
    ]


def stored_reports(task: str) -> list[tuple[Stream, str]]:
    """Stored reports about a task, and requests to its versions: (stream, subject filter), for purging a deleted task."""
    return [
        (WEIGHTS, f"weight-updated.*.{task}"),
        (FAILED, f"failed.*.{task}"),
        (EVENTS, f"events.*.{task}"),
        (REQUESTS, serve("*", task, "*")),
        (SAMPLES, samples("*", task, "*")),
    ]


def token(subject: str, place: int) -> str | None:
    """A part of a subject; None where it has fewer, which a filter that ends in `>` admits."""
    parts = subject.split(".")
    return parts[place] if 0 <= place < len(parts) else None


def is_on(pattern: str, subject: str) -> bool:
    """Whether a subscription to `pattern` stands for `subject`, by NATS's rule: `*` is one part, a last `>` one or more."""
    if pattern == subject:
        return True
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted, given = wanted[:-1], given[: len(wanted) - 1] if len(given) >= len(wanted) else []
    return len(wanted) == len(given) and all(part in ("*", found) for part, found in zip(wanted, given, strict=True))


def task_of(subject: str) -> str:
    """The task that a message of a stream IN_FLIGHT is about; empty when the subject is none of ours, or about a package."""
    if token(subject, 1) == "package":
        return ""
    return token(subject, 2 if token(subject, 1) in ("checked", "scored") else 3) or ""


def package_of(subject: str) -> tuple[str, str] | None:
    """Tenant and digest of the package that a message of a stream IN_FLIGHT is about; None where it is about a task."""
    parts = subject.split(".")
    return (parts[-2], parts[-1]) if token(subject, 1) == "package" and len(parts) >= 4 else None


def about_packages(tenant: str) -> list[tuple[Stream, str]]:
    """(stream, subject) of the messages about packages of one tenant."""
    return [(PROMPTS, check_package("*", tenant, "*")), (TURNS, package_checked(tenant, "*"))]
