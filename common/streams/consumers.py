"""Durable consumers, and their leases: seconds after which NATS redelivers a message without a heartbeat."""

from dataclasses import dataclass

from common.streams.stores import JOBS, own_jobs
from common.streams.subjects import SHARD


@dataclass(frozen=True)
class Consumer:
    """A durable pull consumer, shared by all replicas that name it."""

    name: str
    stream: str
    subject: str
    stage: str
    """Name in dead letters' subjects: `failed.<stage>.<task>`."""
    task_token: int
    """Index of the task's id among the subject's tokens; -1 if there is none."""
    ack_wait_s: float = 5.0
    """Lease of a delivery in seconds: NATS redelivers a message without a heartbeat for this long (ADR 3)."""
    max_attempts: int = 5
    """Maximum attempts in one process that end with an error of the handler."""
    max_deliveries: int = 20
    """Maximum deliveries of a message, without those that this process handed back. It is large, because the death of a process costs
    one delivery of every message that the process held, not only of the one that caused the death."""
    headers_only: bool = False
    also: str | None = None
    """A second filter in addition to `subject`."""
    unused_s: float | None = None
    """Seconds without a request after which NATS removes the consumer; its messages remain. None: never."""


SCHEDULER_CHECKED = Consumer("scheduler-checked", "TURNS", "trajectories.checked.>", "settle", task_token=2)
SCHEDULER_PACKAGES = Consumer("scheduler-packages", "TURNS", "trajectories.package.>", "settle-package", task_token=-1)
SCHEDULER_SCORED = Consumer("scheduler-scored", "SCORED", "trajectories.scored.>", "settle", task_token=2, headers_only=True)
SCHEDULER_WEIGHTS = Consumer("scheduler-weights", "WEIGHTS", "weight-updated.>", "settle", task_token=2)
SCHEDULER_SERVED = Consumer("scheduler-served", "SERVED", "served.>", "book", task_token=-1)
SCHEDULER_LEASES = Consumer("scheduler-leases", "LEASES", "leases.done.>", "leases", task_token=-1)
SCHEDULER_FAILED = Consumer("scheduler-failed", "FAILED", "failed.>", "settle", task_token=2)
UNUSED_JOBS_S = 60.0


def scheduler_jobs(tenant: str) -> Consumer:
    """Jobs of one tenant, in a consumer of their own, so that no job waits behind another tenant's."""
    name, subject = f"scheduler-jobs-{tenant}", f"jobs.*.{tenant}"
    return Consumer(name, "JOBS", subject, "jobs", task_token=-1, also=f"{subject}.>", unused_s=UNUSED_JOBS_S)


def scheduler_own_jobs(tenant: str) -> Consumer:
    """Jobs sent by the tenant's keys. The consumer's name is the same in every tenant's stream, since a NATS permission cannot match part
    of a stream's name: the scheduler's permission is for any stream, but only for this consumer."""
    return Consumer("scheduler-own-jobs", own_jobs(tenant).name, JOBS.subjects[0], "jobs", task_token=-1, unused_s=UNUSED_JOBS_S)


NAMELESS_JOBS = Consumer("scheduler-jobs-_", "JOBS", "jobs.*", "jobs", task_token=-1, unused_s=UNUSED_JOBS_S)
"""Jobs whose subject names no tenant."""


def env_checks(family: str) -> Consumer:
    return Consumer(f"env-check-{family}", "PROMPTS", f"prompts.check.{family}.>", "check", task_token=3)


def env_packages(family: str) -> Consumer:
    return Consumer(f"env-package-{family}", "PROMPTS", f"prompts.package.{family}.>", "package", task_token=-1)


def env_opens(family: str) -> Consumer:
    return Consumer(f"env-open-{family}", "PROMPTS", f"prompts.open.{family}.>", "open", task_token=3)


def env_turns(family: str) -> Consumer:
    return Consumer(f"env-turn-{family}", "TURNS", f"trajectories.turn.{family}.>", "turn", task_token=3)


def rollout_samples(queue: str) -> Consumer:
    """`queue`: the pool, or a result of `subjects.queue`."""
    return Consumer(f"rollout-sample-{queue}", "PROMPTS", f"prompts.sample.{queue}.>", "sample", task_token=3)


def rollout_serves(pool: str) -> Consumer:
    return Consumer(f"rollout-serve-{pool}", "REQUESTS", f"prompts.serve.{pool}.{SHARD}.>", "serve", task_token=4)


def trainer_batches(queue: str) -> Consumer:
    """`queue`: the pool, or a result of `subjects.queue`."""
    return Consumer(f"trainer-batch-{queue}", "BATCHES", f"trajectories.batch.{queue}.>", "train", task_token=3)
