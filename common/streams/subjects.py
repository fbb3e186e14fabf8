"""Subjects, one function for each."""


def job(verb: str, tenant: str | None) -> str:
    """Subject of a job. `tenant`: None for a job that concerns no tenant, or all."""
    return f"jobs.{verb}.{tenant or EVERY_TENANT}"


def sent_by(job: str, key: str) -> str:
    """A job's subject with its sender's public key. NATS permits it only to that key, so it proves the sender."""
    return f"{job}.{key}"


def from_tenant(tenant: str, job: str) -> str:
    """Subject in the services' account on which a job sent by a tenant's key arrives; it is stored under `job`."""
    return f"from.{tenant}.{job}"


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


OWN = "@"
"""Separator in the name of a single executor's queue; it cannot occur in names of pools and accelerators."""


def queue(pool: str, accelerator: str | None = None) -> str:
    """Name of a pool's queue, which all its samplers or trainers read, or of the queue of its executor on `accelerator`, for tasks whose
    home is there. A work queue's filters must not overlap, so the two names are different tokens instead of one subject below the other.
    """
    return pool if accelerator is None else f"{pool}{OWN}{accelerator}"


def pool_of(queue: str) -> str:
    """Pool of a queue's name, the inverse of `queue`."""
    return queue.partition(OWN)[0]


def sample(queue: str, task: str, trajectory: str) -> str:
    """`queue`: the pool, or a result of `queue`."""
    return f"prompts.sample.{queue}.{task}.{trajectory}"


SHARD = "0"
"""The only shard of a pool's replicas so far."""
BASE_MODEL = "_base"
"""Task in a subject of serving that stands for the pool's base model. Reserved, so no task can have this name."""


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


def batch(queue: str, task: str) -> str:
    """`queue`: the pool, or a result of `queue`."""
    return f"trajectories.batch.{queue}.{task}"


def weight_updated(pool: str, task: str) -> str:
    return f"weight-updated.{pool}.{task}"


def samples(pool: str, task: str, version: int | str) -> str:
    """`version`: the version that the step made."""
    return f"samples.{pool}.{task}.{version}"


def events(tenant: str, task: str) -> str:
    return f"events.{tenant}.{task}"


def served(task: str | None, request: str) -> str:
    """`task`: None for the base model."""
    return f"served.{task or BASE_MODEL}.{request}"


def failed(stage: str, task: str) -> str:
    return f"failed.{stage}.{task}"


def lease_order(accelerator: str, executor: str) -> str:
    return f"leases.order.{accelerator}.{executor}"


def lease_done(accelerator: str, executor: str) -> str:
    return f"leases.done.{accelerator}.{executor}"


def executor_now(accelerator: str, executor: str) -> str:
    return f"leases.now.{accelerator}.{executor}"


ASKS = "ask.*.*"
ASK_QUEUE = "scheduler"
"""Queue group of the scheduler's replicas, one of which answers."""
EVERY_TENANT = "_all"
"""Tenant in a subject of `ask` that stands for all, for the operator. Reserved, so no tenant can have this name."""
OPERATOR = "_operator"
"""Tenant, in lists by tenant, of tasks submitted by the operator. Reserved, so no tenant can have this name."""


def ask(tenant: str | None, verb: str) -> str:
    """`tenant`: None for all; only the operator may ask about all."""
    return f"ask.{tenant or EVERY_TENANT}.{verb}"


VALUES = "$KV."


def value_subject(bucket: str, key: str) -> str:
    """Subject that sets a key-value entry, because a bucket is stored as a stream."""
    return f"{VALUES}{bucket}.{key}"
