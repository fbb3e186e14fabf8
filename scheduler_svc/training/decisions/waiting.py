"""Why a task waits: the one cause, and the number that would have to change. Pure.

paused        its owner paused it
no_replica    no replica samples for its pool, serves its environment's family, or trains its pool
budget        its tenant has used up its tokens, or a budget
queue         a stream between the services is at its size limit: publishers block until consumers catch up
quota         its tenant is at a limit: work in flight, storage, or environment checks
share         the pool is full, and other tasks hold part of it
capacity      the pool is full with the task's own work
accelerator   its pool's samplers or trainer have work, and wait for the shared accelerator or do not fit on it
environment   its groups are old while the samplers have room or are parked without work: the environment is the bottleneck
trainer       its step is queued at the trainers behind others
pace          its next step waits for its own groups

The first that holds is the cause, in the order of `cause_of`. Other tasks appear as numbers, never by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from common.limits import Limit, sentence
from scheduler_svc.accelerators.decisions.waits import AcceleratorWait
from scheduler_svc.tenancy.decisions.shares import NO_LIMITS, NOTHING, Capacity, InFlightLimits, Load
from scheduler_svc.training.decisions.pool_load import IDLE_SHARE, LATE


class Kind(StrEnum):
    PAUSED = "paused"
    NO_REPLICA = "no_replica"
    BUDGET = "budget"
    QUOTA = "quota"
    QUEUE = "queue"
    SHARE = "share"
    CAPACITY = "capacity"
    ACCELERATOR = "accelerator"
    ENVIRONMENT = "environment"
    TRAINER = "trainer"
    PACE = "pace"


@dataclass(frozen=True)
class Cause:
    kind: Kind
    number: float
    """Number that would have to change; `sentence` names its quantity."""
    sentence: str


@dataclass(frozen=True)
class Replicas:
    """Live replicas that can work for the task."""

    samplers: int
    environments: int
    trainers: int
    sequences: int = 0
    """Sequences that the samplers decode concurrently."""
    sampled: float = 0.0
    """Sequences that the samplers are decoding."""
    withheld: float = 0.0
    """Sequences that the samplers withhold for served requests."""


@dataclass(frozen=True)
class FullQueue:
    """A stream without room for a message of the maximum size."""

    stream: str
    used_bytes: int
    max_bytes: int
    service: str | None
    """Service that must consume the stream's oldest message. None if the stream keeps its messages."""
    takers: int | None
    """Live replicas of that service; None if they are not counted."""

    @property
    def sentence(self) -> str:
        full = f"stream {self.stream} has {self.used_bytes} of {self.max_bytes} bytes, so its senders wait and nothing is lost"
        turn = f"its oldest message is for the service {self.service}"
        if self.service is None:
            turn = "its messages are kept until their tasks are deleted"
        elif self.takers is not None:
            turn += f", which has {self.takers} live replicas for it"
        return f"{full}; {turn}. An operator may raise MARLAAS_NATS_STREAMS_BYTES"


HOLD_GROUPS = frozenset({"PROMPTS", "BATCHES", "TURNS", "SCORED"})
"""Streams needed by groups in flight and by new groups. The scheduler publishes in order, so one full stream blocks the others."""
HOLD_STEPS = frozenset({"PROMPTS", "BATCHES", "WEIGHTS"})
"""Streams needed by a step at the trainers."""


@dataclass(frozen=True)
class Places:
    """Sequences and tokens in the task's pool: capacity for admission, and usage."""

    capacity: Capacity
    total: Load
    own: int
    """Sequences of this task."""
    siblings: int
    """Sequences of the other tasks of this task's tenant in the pool."""
    tenant: int
    """Sequences of this task's tenant over all pools."""
    in_pool: Load = NOTHING
    """Work of the task's tenant in the pool."""

    @property
    def others(self) -> int:
        return self.total.sequences - self.own - self.siblings


@dataclass(frozen=True)
class Limits:
    """Limits of the tenant."""

    used: Sequence[tuple[Limit, int, int]] = ()
    """Limits that stop admission: name, value, and current usage."""
    in_flight: InFlightLimits = NO_LIMITS
    tenant: str = ""


@dataclass(frozen=True)
class TrainerQueue:
    """Queue of the pool's steps at the trainers."""

    before: int
    """Steps queued before the task's step."""
    step_s: float | None
    """Mean seconds of the pool's latest steps; None before the first."""


@dataclass(frozen=True)
class OverBudget:
    """The budget that has paused a task."""

    amount: float
    """Amount in the budget's unit."""
    sentence: str


@dataclass(frozen=True)
class WaitingTask:
    """Inputs of `cause_of` for one task that has not ended."""

    pool: str
    environment: str
    is_accepted: bool
    is_paused: bool
    allowance: int
    """Groups that the task's pace and evaluations allow it to open."""
    group: Load
    """Sequences and tokens that its next group needs."""
    open_groups: int
    ready_groups: int
    groups_per_step: int
    oldest_s: float
    """Seconds since its oldest open group was admitted; 0 without one."""
    timeout_s: float
    """Maximum seconds that a group may take."""
    queue: TrainerQueue | None
    """Queue in which the task's step is; None while no step of the task is at the trainers."""
    over_budget: OverBudget | None = None
    """Budget that has paused the task; None if none has."""
    sampler_waits: AcceleratorWait | None = None
    """Wait of its pool's samplers for an accelerator; None if one is awake."""
    trainer_waits: AcceleratorWait | None = None
    """Wait of its pool's trainers for an accelerator; None if one is awake."""
    checks: int | None = None
    """Environment checks in progress for the tenant's tasks, if they are at the maximum and the task's own is not among them; else None."""


def cause_of(task: WaitingTask, replicas: Replicas, places: Places, limits: Limits, full_queues: Sequence[FullQueue] = ()) -> Cause | None:
    """Why `task` waits; None if nothing holds it: its next group or step is about to be sent."""
    if task.over_budget is not None:
        return Cause(Kind.BUDGET, task.over_budget.amount, f"it is paused by its tenant's {task.over_budget.sentence}")
    if task.is_paused:
        return Cause(
            Kind.PAUSED, task.open_groups, f"it is paused; {task.open_groups} groups are still in flight. `marlaas resume` continues"
        )
    if not replicas.environments:
        return Cause(Kind.NO_REPLICA, 0, f"0 environment replicas serve '{task.environment}'; 1 is needed")
    needed = HOLD_GROUPS if task.queue is None else HOLD_STEPS
    if (full := next((one for one in full_queues if one.stream in needed), None)) is not None:
        return Cause(Kind.QUEUE, full.max_bytes, full.sentence)
    if task.checks is not None:
        return Cause(Kind.QUOTA, task.checks, f"{task.checks} other tasks of its tenant are checked at '{task.environment}', the maximum")
    if not task.is_accepted:
        return Cause(Kind.ENVIRONMENT, replicas.environments, f"{replicas.environments} environment replicas have its check to answer")
    for wait in (task.sampler_waits, task.trainer_waits):
        if wait is not None and wait.misfit is not None:
            return _for_an_accelerator(task.pool, wait)
    if task.queue is not None:
        return _with_the_trainers(task, task.queue, replicas)
    if not replicas.samplers:
        return Cause(Kind.NO_REPLICA, 0, f"0 rollout replicas serve pool '{task.pool}'; 1 is needed")
    if task.allowance > 0:
        cause = _not_admitted(task, replicas, places, limits)
        is_full = cause is not None and cause.kind in (Kind.SHARE, Kind.CAPACITY)  # a parked pool: with its next slice's first work
        wait = task.sampler_waits
        return _for_an_accelerator(task.pool, wait) if is_full and wait is not None and wait.has_work else cause
    return _in_flight(task, replicas) if task.open_groups else None


def _in_flight(task: WaitingTask, replicas: Replicas) -> Cause:
    """Cause for a task that waits for its open groups."""
    if task.sampler_waits is not None and task.sampler_waits.has_work:
        return _for_an_accelerator(task.pool, task.sampler_waits)
    if task.sampler_waits is not None:
        groups = f"its {task.open_groups} open groups are with environment '{task.environment}', the oldest for {task.oldest_s:.0f} s"
        return Cause(Kind.ENVIRONMENT, round(task.oldest_s), f"{groups}; nothing of its pool is to be sampled")
    has_room = replicas.sampled < IDLE_SHARE * replicas.sequences
    if task.oldest_s >= LATE * task.timeout_s and has_room:
        oldest = f"its oldest group has taken {task.oldest_s:.0f} of {task.timeout_s:.0f} s while the samplers have room"
        return Cause(Kind.ENVIRONMENT, round(task.oldest_s), f"{oldest}: environment '{task.environment}' is slow")
    missing = max(1, task.groups_per_step - task.ready_groups)
    groups = f"its next step needs {missing} more of its own groups; {task.open_groups} are in flight"
    return Cause(Kind.PACE, missing, f"{groups}{_beside_serving(replicas)}")


def _beside_serving(replicas: Replicas) -> str:
    """End of a sentence about samplers that withhold sequences for served requests; else empty."""
    withheld = round(replicas.withheld)
    return f"; served requests withhold {withheld} further sequences" if withheld else ""


def _with_the_trainers(task: WaitingTask, queue: TrainerQueue, replicas: Replicas) -> Cause:
    if not replicas.trainers:
        return Cause(Kind.NO_REPLICA, 0, f"0 trainers serve pool '{task.pool}'; 1 is needed")
    if task.trainer_waits is not None:
        return _for_an_accelerator(task.pool, task.trainer_waits)
    position = queue.before + 1
    seconds = None if queue.step_s is None else position * queue.step_s / replicas.trainers
    expected = "how long steps take here is not known yet" if seconds is None else f"about {seconds:.0f} s at {queue.step_s:.1f} s a step"
    trainers = "the one trainer" if replicas.trainers == 1 else f"{replicas.trainers} trainers"
    return Cause(Kind.TRAINER, position, f"its step is number {position} in line for {trainers}: {expected}")


def _for_an_accelerator(pool: str, wait: AcceleratorWait) -> Cause:
    where = f"pool '{pool}' waits for its accelerator '{wait.accelerator}'"
    if wait.misfit is not None:
        return Cause(Kind.ACCELERATOR, wait.misfit.needed_gib, f"{where}: {wait.misfit.sentence}")
    if wait.is_held:
        return Cause(Kind.ACCELERATOR, 1, f"{where}: 1 order of an operator keeps it parked; `marlaas pools release {pool}` lifts it")
    if wait.faults:
        attempts = "1 attempt to wake it has failed" if wait.faults == 1 else f"{wait.faults} attempts to wake it have failed"
        return Cause(Kind.ACCELERATOR, wait.faults, f"{where}: {attempts}, and another follows")
    return Cause(Kind.ACCELERATOR, round(wait.left_s), f"{where}, about {wait.left_s:.0f} s")


def _quota(task: WaitingTask, places: Places, limits: Limits) -> Cause | None:
    """In-flight limit that the task's next group would exceed; None if it exceeds none."""
    bounds, pool, group = limits.in_flight, places.in_pool, task.group
    if not bounds.may_hold(places.tenant, group):
        name, value, used, needed = "max_sequences", bounds.max_sequences, places.tenant, group.sequences
    elif bounds.may_hold_in_pool(pool, group):
        return None
    elif bounds.exceeds_sequences(pool, group):
        name, value, used, needed = "max_pool_sequences", bounds.max_pool_sequences, pool.sequences, group.sequences
    else:
        name, value, used, needed = "max_pool_tokens", bounds.max_pool_tokens, pool.tokens, group.tokens
    assert value is not None
    return Cause(Kind.QUOTA, value, sentence(name, value, round(used), limits.tenant, needed=round(needed)))


def _not_admitted(task: WaitingTask, replicas: Replicas, places: Places, limits: Limits) -> Cause | None:
    needed = task.group.sequences
    for name, value, used in limits.used:
        if used >= value:
            return Cause(Kind.BUDGET if name == "max_tokens" else Kind.QUOTA, value, sentence(name, value, used, limits.tenant))
    if (quota := _quota(task, places, limits)) is not None:
        return quota
    total, capacity = places.total, places.capacity
    if not total.sequences or (total + task.group).fits(capacity):
        return None
    by_sequences = total.sequences + needed > capacity.sequences
    what = f"{capacity.sequences:.0f} sequences" if by_sequences else f"{capacity.kv_tokens:.0f} tokens of KV cache"
    in_flight = total.sequences if by_sequences else round(total.tokens)
    missing = needed if by_sequences else round(task.group.tokens)
    full = f"pool '{task.pool}' takes {what}, {in_flight} are in flight and its next group needs {missing}{_beside_serving(replicas)}"
    if places.own == total.sequences:
        return Cause(Kind.CAPACITY, round(capacity.sequences if by_sequences else capacity.kv_tokens), f"{full}; all are its own")
    held = (
        f"of {total.sequences} sequences it holds {places.own}, its tenant's other tasks {places.siblings}, other tenants {places.others}"
    )
    return Cause(Kind.SHARE, total.sequences - places.own, f"{full}; {held}")
