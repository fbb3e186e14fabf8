"""Streams and buckets, with their limits; and the subjects that concern a task, a package or a tenant."""

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
"""Lifetime of an entry in seconds: longer than the minute over which the limits count."""
ALIASES_BUCKET = "aliases"
LEASES_BUCKET = "leases"
LEASE_TTL_S = 15.0
"""Seconds after which an unrenewed lease is free."""
CLOCKS_BUCKET = "pools"


@dataclass(frozen=True)
class Stream:
    """A JetStream stream. Work queues drop a message once it is acknowledged; limits streams keep it."""

    name: str
    subjects: tuple[str, ...]
    retention: Literal["workqueue", "limits"] = "workqueue"
    max_per_subject: int = -1
    """Maximum messages per subject. A new one drops the oldest, or is refused if `refuses` is set."""
    max_messages: int = -1
    """Maximum messages in total; a new one is refused if `refuses` is set."""
    refuses: bool = False
    stored_as: tuple[str, str] | None = None
    """Pattern of an arriving message's subject, and the subject under which it is stored."""
    first_sequence: int | None = None
    announced: str = ""
    """Core NATS subject on which the headers of each stored message are published; empty: none."""
    max_age_s: float = 0.0
    """Maximum age of a message; 0: no limit. Backlogs are limited by admission, not by dropping messages."""
    share: float = 0.0
    """Share of the total bytes of all streams (`MARLAAS_NATS_STREAMS_BYTES`)."""
    drops_oldest: bool = False
    """Behaviour when full. True: drops the oldest message, whose content or record is in PostgreSQL. False: refuses new ones."""
    max_message_bytes: int = 8 * 1024 * 1024
    duplicate_window_s: float = 120.0

    @property
    def filling(self) -> str:
        """Subject of empty filler messages, with which a new file of the stream is started; no consumer takes them."""
        return f"filling.{self.name}"


@dataclass(frozen=True)
class Bucket:
    """A key-value bucket: one value per key. A full one refuses new keys, and values larger than those they replace."""

    name: str
    share: float
    """Share of the total bytes of all streams and buckets."""
    ttl_s: float = 0.0
    """Seconds for which a value is kept; 0: until it is deleted."""
    max_value_bytes: int = 2 * 1024 * 1024


MAX_WAITING_JOBS = 100
"""Maximum jobs of one tenant, verb and key that wait or are handled; NATS refuses more, and still accepts those of others."""
STORED_JOBS = "stored.*.jobs.>"
"""Subjects on which stored jobs are announced, by the stream that stored them."""
JOBS = Stream("JOBS", ("jobs.>",), share=0.05, max_per_subject=MAX_WAITING_JOBS, refuses=True, announced="stored.JOBS.jobs.>")
MAX_OWN_JOBS = 2 * MAX_WAITING_JOBS
"""Maximum jobs of one tenant, over all verbs and keys. No bytes are reserved: those of a thousand tenants would fill the whole store."""
OWN_JOBS = "JOBS_"
FIRST_OWN_JOB = 2**40
"""Sequence of the first job in a tenant's own stream. Sequences of JOBS are below it, so a tenant's name and a sequence identify one job
among both streams."""


def own_jobs(tenant: str) -> Stream:
    """Stream of jobs sent by the tenant's keys. Message ids, which JetStream compares, and sequences, which it returns, are thus the
    tenant's own. JOBS has the operators' jobs, and all jobs if NATS requires no keys.
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
    """Whether a tenant's key sent the job with this sequence. Otherwise an operator sent it, or any client if NATS requires no keys."""
    return sequence >= FIRST_OWN_JOB


def tenant_of(stream: str) -> str:
    """Tenant of a stream's name, the inverse of `own_jobs`; empty for other streams."""
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
"""Requests to versions, of all gateways together. A full stream refuses further ones, so that they take no space from training. No client
waits as long as the maximum age."""
SERVED = Stream("SERVED", ("served.>",), max_age_s=3 * DAY_S, share=0.02)
LEASES = Stream("LEASES", ("leases.order.>", "leases.done.>"), retention="limits", max_per_subject=64, max_age_s=DAY_S, share=0.005)
"""Orders to executors of shared accelerators, of which the last counts, and their outcomes."""
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
"""Minimum size of a stream: four of the largest messages."""
MIN_BUCKET_BYTES = 8 * 1024 * 1024
"""Minimum size of a bucket: four of its largest values."""


def bound_of(store: Stream | Bucket, streams_bytes: int) -> int:
    """Maximum bytes of one stream or bucket, given the total for all."""
    return max(int(streams_bytes * store.share), MIN_BUCKET_BYTES if isinstance(store, Bucket) else MIN_STREAM_BYTES)


def reserved_bytes(streams_bytes: int) -> int:
    """Bytes that NATS reserves for all streams and buckets. Exceeds a small `streams_bytes`, because each has a minimum size."""
    return sum(bound_of(store, streams_bytes) for store in (*STREAMS, *BUCKETS))


IN_FLIGHT = (PROMPTS, TURNS, SCORED, BATCHES)
"""Streams whose messages each concern one task, and are useless once it has ended."""
BETWEEN_SERVICES = (*IN_FLIGHT, WEIGHTS)
"""Streams whose publishers wait while they are full."""


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
    """A token of a subject, by index; None if it has fewer, which is possible with a filter that ends in `>`."""
    parts = subject.split(".")
    return parts[place] if 0 <= place < len(parts) else None


def is_on(pattern: str, subject: str) -> bool:
    """Whether a subscription to `pattern` matches `subject`, by NATS's rule: `*` is one token, a last `>` one or more."""
    if pattern == subject:
        return True
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted, given = wanted[:-1], given[: len(wanted) - 1] if len(given) >= len(wanted) else []
    return len(wanted) == len(given) and all(part in ("*", found) for part, found in zip(wanted, given, strict=True))


def task_of(subject: str) -> str:
    """Task of a message in a stream of IN_FLIGHT; empty for an unknown subject, and for a package."""
    if token(subject, 1) == "package":
        return ""
    return token(subject, 2 if token(subject, 1) in ("checked", "scored") else 3) or ""


def package_of(subject: str) -> tuple[str, str] | None:
    """Tenant and digest of the package of a message in a stream of IN_FLIGHT; None if it concerns a task."""
    parts = subject.split(".")
    return (parts[-2], parts[-1]) if token(subject, 1) == "package" and len(parts) >= 4 else None


def about_packages(tenant: str) -> list[tuple[Stream, str]]:
    """(stream, subject filter) of the messages about packages of one tenant."""
    return [(PROMPTS, check_package("*", tenant, "*")), (TURNS, package_checked(tenant, "*"))]
