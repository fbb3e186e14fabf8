"""Permissions of each service on NATS. A test fails if a service uses a call of the bus, a stream or a consumer that has no row here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common import streams
from common.accelerators import executor_name
from common.access import rows
from common.access.rows import Permissions, Row
from common.messages import FILE_FAMILY, OWN_FAMILY
from common.pools import Named, Pools, named_replicas

INBOX = "_INBOX"


@dataclass(frozen=True)
class Deployment:
    """Names that occur in subjects and in names of consumers. NATS cannot match part of a consumer's name, so each is listed."""

    pools: tuple[str, ...]
    families: tuple[str, ...]
    """Families of environments served by at least one replica."""
    sampler_queues: tuple[str, ...] = ()
    """Queues of single samplers, for pools with samplers on several shared accelerators."""
    trainer_queues: tuple[str, ...] = ()
    """Queues of single trainers, for pools with trainers on several shared accelerators."""

    @classmethod
    def of(cls, pools: Pools, families: Sequence[str]) -> "Deployment":
        found = {key: names for key, names in named_replicas(pools).items() if len(names) > 1}
        return cls(tuple(pools), tuple(families), _queues(found, "rollout"), _queues(found, "trainer"))


def _queues(found: Named, service: str) -> tuple[str, ...]:
    return tuple(streams.queue(pool, each) for (one, pool), names in found.items() if one == service for each in names)


STORES = (
    *(stream.name for stream in streams.STREAMS),
    *(rows.bucket(each.name) for each in streams.BUCKETS),
    rows.blob_store(streams.BLOBS_BUCKET),
)
"""All streams, including those behind buckets and blobs."""
WORK_QUEUES = {stream.name for stream in streams.STREAMS if stream.retention == "workqueue"}
"""Streams that cannot be followed: JetStream refuses it."""
SCHEDULER_CONSUMERS = (
    streams.SCHEDULER_CHECKED,
    streams.SCHEDULER_PACKAGES,
    streams.SCHEDULER_SCORED,
    streams.SCHEDULER_WEIGHTS,
    streams.SCHEDULER_SERVED,
    streams.SCHEDULER_LEASES,
    streams.SCHEDULER_FAILED,
)
CLOCK = rows.inspects(streams.JOBS.name)
"""Reading the configuration of the stream of jobs. The answer contains NATS's time; it also shows that the scheduler has declared all
streams."""


def scheduler(_: Deployment) -> list[Row]:
    """Owns every stream. It may publish all subjects, because it republishes the message of a repaired dead letter."""
    found = rows.publishes(*(subject for stream in streams.STREAMS for subject in stream.subjects))
    found += rows.publishes(*(streams.value_subject(each.name, ">") for each in streams.BUCKETS if each is not streams.REPLICAS))
    for store in STORES:
        found += [rows.inspects(store), rows.declares(store), rows.reads(store), rows.purges(store)]
    found += [rows.recreates(stream.name) for stream in (*streams.IN_FLIGHT, streams.WEIGHTS)]
    for consumer in SCHEDULER_CONSUMERS:
        found += rows.consumes(consumer)
        found.append(rows.inspects_consumer(consumer))
    found += rows.consumes_all(streams.JOBS.name, streams.scheduler_jobs("<tenant>"), streams.NAMELESS_JOBS)
    found += rows.owns_each(streams.own_jobs("<tenant>").name, streams.scheduler_own_jobs("<tenant>"))
    found.append(rows.subscribes(streams.STORED_JOBS))
    for each in streams.BUCKETS:
        found += rows.watches(each.name)
    found += rows.lists_blobs(streams.BLOBS_BUCKET) + rows.stores_blobs(streams.BLOBS_BUCKET)
    found.append(rows.subscribes(streams.executor_now("*", "*")))
    return [*found, rows.follows(streams.EVENTS.name), rows.subscribes("ask.*.*")]


def env(deployment: Deployment) -> list[Row]:
    found = [CLOCK, *rows.watches(streams.TASKS_BUCKET), *rows.watches(streams.CLOCKS_BUCKET), *_reports("env")]
    for family in deployment.families:
        for consumer in (streams.env_checks(family), streams.env_opens(family), streams.env_turns(family)):
            found += rows.consumes(consumer)
    if OWN_FAMILY in deployment.families:
        found += [*rows.consumes(streams.env_packages(OWN_FAMILY)), *rows.publishes(streams.package_checked("*", "*"))]
    if {OWN_FAMILY, FILE_FAMILY} & set(deployment.families):
        found += rows.fetches_blobs(streams.BLOBS_BUCKET)
    found += rows.publishes(*(streams.sample(queue, "*", "*") for queue in (*deployment.pools, *deployment.sampler_queues)))
    return found + rows.publishes(streams.checked("*"), streams.scored("*", "*"))


def rollout(deployment: Deployment) -> list[Row]:
    found = [CLOCK, *rows.watches(streams.TASKS_BUCKET), *_reports("rollout"), rows.follows(streams.WEIGHTS.name)]
    found += rows.watches(streams.ALIASES_BUCKET) + rows.watches(streams.CLOCKS_BUCKET)
    for pool in deployment.pools:
        consumers = (streams.rollout_samples(pool), streams.rollout_serves(pool))
        found += [row for consumer in consumers for row in rows.consumes(consumer)] + _leases("rollout", pool, *consumers)
    found += _consumes_own_queues(*(streams.rollout_samples(queue) for queue in deployment.sampler_queues))
    found += rows.publishes(*(streams.turn(family, "*", "*") for family in deployment.families), streams.replies("*"))
    found += [rows.subscribes(streams.cancels("*")), *rows.watches(streams.REPLICAS_BUCKET)]
    return found + rows.fetches_blobs(streams.BLOBS_BUCKET)


def trainer(deployment: Deployment) -> list[Row]:
    found = [CLOCK, *rows.looks_up(streams.TASKS_BUCKET), *rows.watches(streams.REPLICAS_BUCKET), *_reports("trainer")]
    found += [rows.reads(streams.SCORED.name), rows.reads(streams.WEIGHTS.name)]
    for pool in deployment.pools:
        found += rows.consumes(streams.trainer_batches(pool)) + _leases("trainer", pool, streams.trainer_batches(pool))
        found += rows.publishes(streams.weight_updated(pool, "*"), streams.samples(pool, "*", "*"))
    found += _consumes_own_queues(*(streams.trainer_batches(queue) for queue in deployment.trainer_queues))
    return found + rows.fetches_blobs(streams.BLOBS_BUCKET) + rows.stores_blobs(streams.BLOBS_BUCKET)


def gateway(deployment: Deployment) -> list[Row]:
    """Permissions of the gateway's own key; jobs, questions and events of callers use connections with the callers' keys.

    With its own key, the gateway asks for the pools, to check whether a scheduler answers.
    """
    found = [CLOCK, *rows.watches(streams.HTTP_KEYS_BUCKET), *rows.watches(streams.REPLICAS_BUCKET), *_reports("gateway")]
    found += rows.watches(streams.HISTORY_BUCKET)
    found += rows.watches(streams.ALIASES_BUCKET)
    found += rows.publishes(streams.ask(None, "pools"), streams.ask("*", "terms"), streams.value_subject(streams.HTTP_USE_BUCKET, "*.*"))
    found += rows.looks_up(streams.HTTP_USE_BUCKET)
    found += rows.publishes(*(streams.serve(pool, "*", "*") for pool in deployment.pools), streams.cancels("*"), streams.served("*", "*"))
    return [*found, rows.subscribes(streams.replies("*"))]


def operator(_: Deployment) -> list[Row]:
    """The operator's command line and programs, which send jobs for every tenant, read everything, and change nothing else."""
    found = [row for store in STORES for row in (rows.inspects(store), rows.reads(store))]
    found += [rows.follows(store) for store in STORES if store not in WORK_QUEUES]
    found += [row for each in streams.BUCKETS for row in rows.watches(each.name)]
    found += rows.lists_blobs(streams.BLOBS_BUCKET)
    found.append(rows.lists(streams.own_jobs("<tenant>").name))
    return [*found, *rows.publishes("jobs.*.*", "jobs.*.*.*", "ask.*.*"), rows.subscribes("events.>")]


def _reports(service: str) -> list[Row]:
    """Write a replica's entry in the bucket of replicas, and its process's entry in the history of lifetimes."""
    name, lives = streams.REPLICAS_BUCKET, streams.HISTORY_BUCKET
    found = [rows.inspects(rows.bucket(name)), *rows.publishes(*(streams.value_subject(each, f"{service}.*") for each in (name, lives)))]
    return [*found, *rows.looks_up(lives)]


def _leases(service: str, pool: str, *consumers: streams.Consumer) -> list[Row]:
    """Follow the orders to an executor, hold its lease, and read how many messages wait in its queues."""
    name, bucket = executor_name(service, pool), streams.LEASES_BUCKET
    found = rows.publishes(streams.lease_done("*", name), streams.executor_now("*", name), streams.value_subject(bucket, "*"))
    found += [rows.follows(streams.LEASES.name), rows.reads(streams.LEASES.name), *rows.watches(bucket)]
    return found + [rows.inspects_consumer(consumer) for consumer in consumers]


def _consumes_own_queues(*consumers: streams.Consumer) -> list[Row]:
    """Take messages of single executors' queues, and read how many wait. While an executor cannot take messages, others of its pool take
    them from its queue."""
    return [row for consumer in consumers for row in (*rows.consumes(consumer), rows.inspects_consumer(consumer))]


SERVICES: dict[str, Callable[[Deployment], list[Row]]] = {
    "scheduler": scheduler,
    "env": env,
    "rollout": rollout,
    "trainer": trainer,
    "gateway": gateway,
    "operator": operator,
}
"""User of the services' account → function that returns its rows."""


def table(deployment: Deployment) -> dict[str, list[Row]]:
    """Rows by user, without duplicates."""
    return {name: list(dict.fromkeys(rows_of(deployment))) for name, rows_of in SERVICES.items()}


def service_permissions(name: str, deployment: Deployment) -> Permissions:
    """Permissions of a service. Raises: KeyError for a name that is not in SERVICES."""
    return rows.permissions(SERVICES[name](deployment), f"{INBOX}.{name}", may_respond=name == "scheduler")
