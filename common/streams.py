"""Subjects, streams, consumers and buckets, as data.

    jobs.<verb>.<tenant>[.<key>]                      anyone → scheduler          work queue, a consumer a tenant
    stored.jobs.>                                     NATS → scheduler            none: headers of jobs that are stored
    prompts.check.<family>.<task>                     scheduler → env             work queue
    prompts.package.<family>.<tenant>.<package>       scheduler → env             work queue
    prompts.open.<family>.<task>.<group>              scheduler → env             work queue
    prompts.sample.<pool>.<task>.<trajectory>         env → rollout               work queue
    prompts.serve.<pool>.<shard>.<task>.<request>     gateway → rollout           work queue
    trajectories.turn.<family>.<task>.<trajectory>    rollout → env               work queue
    trajectories.checked.<task>                       env → scheduler             work queue
    trajectories.package.<tenant>.<package>           env → scheduler             work queue
    trajectories.scored.<task>.<trajectory>           env → scheduler, trainer    limits; the scheduler deletes
    trajectories.batch.<pool>.<task>                  scheduler → trainer         work queue
    weight-updated.<pool>.<task>                      trainer → scheduler, every rollout replica     last few per task
    events.<tenant>.<task>                            scheduler → clients                            last 10 000 per task
    served.<task>.<request>                           gateway → scheduler         work queue
    failed.<stage>.<task>                             bus → scheduler             limits, for people to read
    ask.<tenant>.<verb>                               clients → scheduler         none: request and reply
    replies.<gateway>                                 rollout → gateway           none: lost where nobody listens
    cancels.<replica>                                 gateway → rollout           none: lost where nobody listens
    filling.<stream>                                  scheduler → nobody          deleted at once, see `StreamReader.begin_block`

Verbs of jobs: JOB_VERBS.
Where a message carries several members of a group, <trajectory> is the first of them.
"""

from dataclasses import dataclass
from typing import Literal

DAY_S = 86_400.0

KIND_HEADER = "Marlaas-Kind"
SETTLEMENT_HEADER = "Marlaas-Settlement"

REPLICAS_BUCKET = "replicas"
REPLICA_TTL_S = 10.0
TASKS_BUCKET = "tasks"
BLOBS_BUCKET = "blobs"
HISTORY_BUCKET = "history"
HTTP_KEYS_BUCKET = "http-keys"

JOB_VERBS = (
    *("submit", "preview", "cancel", "pause", "resume", "resend", "delete", "prune", "upload", "delete-package"),
    *("set-tenant", "delete-tenant", "set-price", "set-budget", "set-access"),
)


@dataclass(frozen=True)
class Stream:
    """A JetStream stream. Work queues drop a message once it is acknowledged; limits streams keep it."""

    name: str
    subjects: tuple[str, ...]
    retention: Literal["workqueue", "limits"] = "workqueue"
    max_per_subject: int = -1
    """Maximum messages of one subject. A new one drops the oldest, or is refused where `refuses` says so."""
    refuses: bool = False
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
        """Subject of messages without content, in streams of IN_FLIGHT; no consumer takes it."""
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


@dataclass(frozen=True)
class Consumer:
    """A durable pull consumer, shared by all replicas that name it."""

    name: str
    stream: str
    subject: str
    stage: str
    """Name in dead letters' subjects: `failed.<stage>.<task>`."""
    task_token: int
    """Position of the task's id among the subject's parts; -1 where there is none."""
    ack_wait_s: float = 5.0
    """Lease of a delivery: without a heartbeat for this long, the message is redelivered (ADR 13)."""
    max_attempts: int = 5
    """Maximum attempts that end in an error of the handler."""
    max_deliveries: int = 20
    """Maximum deliveries without an answer; many more than attempts, as a dying process affects innocent messages too."""
    headers_only: bool = False
    also: str | None = None
    """A second filter beside `subject`."""
    unused_s: float | None = None
    """Seconds without a request after which NATS removes the consumer; its messages stay. None: never."""


MAX_WAITING_JOBS = 100
"""Jobs of one tenant, verb and key that wait or are handled; NATS refuses more, and takes those of others."""
STORED_JOBS = "stored.jobs.>"

JOBS = Stream("JOBS", ("jobs.>",), share=0.05, max_per_subject=MAX_WAITING_JOBS, refuses=True, announced=STORED_JOBS)
PROMPTS = Stream("PROMPTS", ("prompts.>", "filling.PROMPTS"), share=0.2)
TURNS = Stream("TURNS", ("trajectories.turn.>", "trajectories.checked.>", "trajectories.package.>", "filling.TURNS"), share=0.2)
SCORED = Stream("SCORED", ("trajectories.scored.>", "filling.SCORED"), retention="limits", share=0.23)
BATCHES = Stream("BATCHES", ("trajectories.batch.>", "filling.BATCHES"), share=0.05)
WEIGHTS = Stream("WEIGHTS", ("weight-updated.>",), retention="limits", max_per_subject=8, share=0.05)
EVENTS = Stream("EVENTS", ("events.>",), retention="limits", max_per_subject=10_000, max_age_s=30 * DAY_S, share=0.1, drops_oldest=True)
FAILED = Stream("FAILED", ("failed.>",), retention="limits", max_age_s=30 * DAY_S, share=0.04, drops_oldest=True)
SERVED = Stream("SERVED", ("served.>",), max_age_s=3 * DAY_S, share=0.02)
STREAMS = (JOBS, PROMPTS, TURNS, SCORED, BATCHES, WEIGHTS, EVENTS, FAILED, SERVED)
REPLICAS = Bucket(REPLICAS_BUCKET, share=0.005, ttl_s=REPLICA_TTL_S)
TASKS = Bucket(TASKS_BUCKET, share=0.04)
HISTORY = Bucket(HISTORY_BUCKET, share=0.005)
HTTP_KEYS = Bucket(HTTP_KEYS_BUCKET, share=0.01)
BUCKETS = (REPLICAS, TASKS, HISTORY, HTTP_KEYS)

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


def submit(tenant: str) -> str:
    return f"jobs.submit.{tenant}"


def control(verb: Literal["cancel", "pause", "resume", "delete"], tenant: str) -> str:
    return f"jobs.{verb}.{tenant}"


def resend(tenant: str) -> str:
    return f"jobs.resend.{tenant}"


def set_tenant(tenant: str | None) -> str:
    """`tenant`: None for the default limits of all."""
    return f"jobs.set-tenant.{tenant or EVERY_TENANT}"


def set_budget(tenant: str) -> str:
    return f"jobs.set-budget.{tenant}"


def set_access(tenant: str | None) -> str:
    """`tenant`: None for the operators' own keys."""
    return f"jobs.set-access.{tenant or EVERY_TENANT}"


def set_price() -> str:
    """Prices are of no tenant."""
    return f"jobs.set-price.{EVERY_TENANT}"


def delete_tenant(tenant: str) -> str:
    return f"jobs.delete-tenant.{tenant}"


def preview(tenant: str) -> str:
    return f"jobs.preview.{tenant}"


def prune(tenant: str) -> str:
    return f"jobs.prune.{tenant}"


def upload(tenant: str) -> str:
    return f"jobs.upload.{tenant}"


def delete_package(tenant: str) -> str:
    return f"jobs.delete-package.{tenant}"


def sent_by(job: str, key: str) -> str:
    """A job's subject with the public key of its sender. NATS permits it to that key alone, so it proves who has sent the job."""
    return f"{job}.{key}"


def check(family: str, task: str) -> str:
    return f"prompts.check.{family}.{task}"


def checked(task: str) -> str:
    return f"trajectories.checked.{task}"


def check_package(family: str, tenant: str, package: str) -> str:
    """`package`: its digest."""
    return f"prompts.package.{family}.{tenant}.{package}"


def package_checked(tenant: str, package: str) -> str:
    return f"trajectories.package.{tenant}.{package}"


def open_group(family: str, task: str, group: int) -> str:
    return f"prompts.open.{family}.{task}.{group}"


def sample(pool: str, task: str, trajectory: str) -> str:
    return f"prompts.sample.{pool}.{task}.{trajectory}"


SHARD = "0"
"""The only part of a pool's replicas so far."""
BASE_MODEL = "_base"
"""In place of the task in a subject of serving: the pool's base model. No task can have this name."""


def serve(pool: str, task: str | None, request: str) -> str:
    """`task`: None for the base model."""
    return f"prompts.serve.{pool}.{SHARD}.{task or BASE_MODEL}.{request}"


def replies(gateway: str) -> str:
    return f"replies.{gateway}"


def cancels(replica: str) -> str:
    return f"cancels.{replica}"


def turn(family: str, task: str, trajectory: str) -> str:
    return f"trajectories.turn.{family}.{task}.{trajectory}"


def scored(task: str, trajectory: str) -> str:
    return f"trajectories.scored.{task}.{trajectory}"


def batch(pool: str, task: str) -> str:
    return f"trajectories.batch.{pool}.{task}"


def weight_updated(pool: str, task: str) -> str:
    return f"weight-updated.{pool}.{task}"


def events(tenant: str, task: str) -> str:
    return f"events.{tenant}.{task}"


def served(task: str | None, request: str) -> str:
    """`task`: None for the base model."""
    return f"served.{task or BASE_MODEL}.{request}"


def failed(stage: str, task: str) -> str:
    return f"failed.{stage}.{task}"


ASKS = "ask.*.*"
ASK_QUEUE = "scheduler"
"""Queue group of the scheduler's replicas: one of them answers."""
EVERY_TENANT = "_all"
"""In place of the tenant in a subject of `ask`: all of them, for the operator. No tenant can have this name."""

OPERATOR = "_operator"
"""In place of a tenant in lists by tenant: tasks that the operator has submitted. No tenant can have this name."""


def ask(tenant: str | None, verb: str) -> str:
    """`tenant`: None for all, which only the operator may ask about."""
    return f"ask.{tenant or EVERY_TENANT}.{verb}"


VALUES = "$KV."


def value_subject(bucket: str, key: str) -> str:
    """Subject that sets a key-value entry: a bucket is a stream underneath."""
    return f"{VALUES}{bucket}.{key}"


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
        (PROMPTS, serve("*", task, "*")),
    ]


IN_FLIGHT = (PROMPTS, TURNS, SCORED, BATCHES)
"""Streams whose every message is about one task, and useless once that has ended; except requests to versions (`is_serving`)."""

BETWEEN_SERVICES = (*IN_FLIGHT, WEIGHTS)
"""Streams whose senders wait where they are full."""


def token(subject: str, place: int) -> str | None:
    """A part of a subject; None where it has fewer, which a filter that ends in `>` admits."""
    parts = subject.split(".")
    return parts[place] if 0 <= place < len(parts) else None


def task_of(subject: str) -> str:
    """The task that a message of a stream IN_FLIGHT is about; empty when the subject is none of ours, or about a package."""
    if token(subject, 1) == "package":
        return ""
    if is_serving(subject):
        return token(subject, 4) or ""
    return token(subject, 2 if token(subject, 1) in ("checked", "scored") else 3) or ""


def is_serving(subject: str) -> bool:
    """Whether it is a request of `serve`: versions of ended tasks are served too."""
    return subject.startswith("prompts.serve.")


def package_of(subject: str) -> tuple[str, str] | None:
    """Tenant and digest of the package that a message of a stream IN_FLIGHT is about; None where it is about a task."""
    parts = subject.split(".")
    return (parts[-2], parts[-1]) if token(subject, 1) == "package" and len(parts) >= 4 else None


def about_packages(tenant: str) -> list[tuple[Stream, str]]:
    """(stream, subject) of the messages about packages of one tenant."""
    return [(PROMPTS, check_package("*", tenant, "*")), (TURNS, package_checked(tenant, "*"))]


SCHEDULER_CHECKED = Consumer("scheduler-checked", "TURNS", "trajectories.checked.>", "settle", task_token=2)
SCHEDULER_PACKAGES = Consumer("scheduler-packages", "TURNS", "trajectories.package.>", "settle-package", task_token=-1)
SCHEDULER_SCORED = Consumer("scheduler-scored", "SCORED", "trajectories.scored.>", "settle", task_token=2, headers_only=True)
SCHEDULER_WEIGHTS = Consumer("scheduler-weights", "WEIGHTS", "weight-updated.>", "settle", task_token=2)
SCHEDULER_SERVED = Consumer("scheduler-served", "SERVED", "served.>", "book", task_token=-1)
SCHEDULER_FAILED = Consumer("scheduler-failed", "FAILED", "failed.>", "settle", task_token=2)


ALL_JOBS = "scheduler-jobs"
"""Consumer of every tenant's jobs, of schedulers before each tenant's had one of its own. A work queue's filters must not overlap."""
UNUSED_JOBS_S = 60.0


def scheduler_jobs(tenant: str) -> Consumer:
    """Jobs of one tenant: none waits behind another tenant's."""
    name, subject = f"scheduler-jobs-{tenant}", f"jobs.*.{tenant}"
    return Consumer(name, "JOBS", subject, "jobs", task_token=-1, also=f"{subject}.>", unused_s=UNUSED_JOBS_S)


NAMELESS_JOBS = Consumer("scheduler-jobs-_", "JOBS", "jobs.*", "jobs", task_token=-1, unused_s=UNUSED_JOBS_S)
"""Messages that name no tenant."""


def env_checks(family: str) -> Consumer:
    return Consumer(f"env-check-{family}", "PROMPTS", f"prompts.check.{family}.>", "check", task_token=3)


def env_packages(family: str) -> Consumer:
    return Consumer(f"env-package-{family}", "PROMPTS", f"prompts.package.{family}.>", "package", task_token=-1)


def env_opens(family: str) -> Consumer:
    return Consumer(f"env-open-{family}", "PROMPTS", f"prompts.open.{family}.>", "open", task_token=3)


def env_turns(family: str) -> Consumer:
    return Consumer(f"env-turn-{family}", "TURNS", f"trajectories.turn.{family}.>", "turn", task_token=3)


def rollout_samples(pool: str) -> Consumer:
    return Consumer(f"rollout-sample-{pool}", "PROMPTS", f"prompts.sample.{pool}.>", "sample", task_token=3)


def rollout_serves(pool: str) -> Consumer:
    return Consumer(f"rollout-serve-{pool}", "PROMPTS", f"prompts.serve.{pool}.{SHARD}.>", "serve", task_token=4)


def trainer_batches(pool: str) -> Consumer:
    return Consumer(f"trainer-batch-{pool}", "BATCHES", f"trajectories.batch.{pool}.>", "train", task_token=3)
