"""Why a task waits: the one cause, and the number that would have to change. Pure.

    paused        its owner paused it
    no_replica    no replica samples for its pool, serves its environment's family, or trains its pool
    budget        its tenant has used up its tokens
    quota         its tenant has as many sequences in flight, or checks of environments, as it may have
    share         the pool is full, and others hold places in it
    capacity      the pool is full with the task's own work
    environment   its groups are old, and the samplers have room: the environment takes the time
    trainer       its step is with the trainers: others are trained before it
    pace          its next step waits for its own groups

The first that holds is the cause, in the order of `cause_of`. Others appear as numbers, never by name.
"""

from dataclasses import dataclass
from enum import StrEnum

from scheduler_svc.decisions.oversubscription import IDLE_SHARE, LATE
from scheduler_svc.decisions.shares import Capacity, Load


class Kind(StrEnum):
    PAUSED = "paused"
    NO_REPLICA = "no_replica"
    BUDGET = "budget"
    QUOTA = "quota"
    SHARE = "share"
    CAPACITY = "capacity"
    ENVIRONMENT = "environment"
    TRAINER = "trainer"
    PACE = "pace"


@dataclass(frozen=True)
class Cause:
    kind: Kind
    number: float
    """The number that would have to change; `sentence` says of what."""
    sentence: str


@dataclass(frozen=True)
class Replicas:
    """Live replicas that could work for the task."""

    samplers: int
    environments: int
    trainers: int
    sequences: int = 0
    """Sequences that the samplers decode at once."""
    sampled: float = 0.0
    """Sequences that they are decoding."""


@dataclass(frozen=True)
class Places:
    """Places in the task's pool: what admission allows, and who holds it."""

    capacity: Capacity
    total: Load
    own: int
    """Sequences of this task."""
    siblings: int
    """Sequences of its tenant's other tasks in the pool."""
    tenant: int
    """Sequences of its tenant over all pools."""

    @property
    def others(self) -> int:
        return self.total.sequences - self.own - self.siblings


@dataclass(frozen=True)
class Limits:
    """Limits of the tenant; None where there is none."""

    used_tokens: int = 0
    max_tokens: int | None = None
    max_sequences: int | None = None


@dataclass(frozen=True)
class TrainerQueue:
    """Steps of the task's pool that are with the trainers."""

    before: int
    """Steps sent before the task's."""
    step_s: float | None
    """Mean seconds of the pool's latest steps; None before the first."""


@dataclass(frozen=True)
class WaitingTask:
    """A task that has not ended."""

    pool: str
    environment: str
    is_accepted: bool
    is_paused: bool
    allowance: int
    """Groups that its pace and its evaluations allow it to open."""
    group: Load
    """Places that its next group needs."""
    open_groups: int
    ready_groups: int
    groups_per_step: int
    oldest_s: float
    """Seconds since its oldest open group was admitted; 0 without one."""
    timeout_s: float
    """Seconds that a group may take."""
    queue: TrainerQueue | None
    """None while no step of the task is with the trainers."""
    checks: int | None = None
    """Checks that the environment has of its tenant's tasks, where these are as many as may be, and its own is none of them."""


def cause_of(task: WaitingTask, replicas: Replicas, places: Places, limits: Limits) -> Cause | None:
    """None when nothing holds the task: its next group or step is about to leave."""
    if task.is_paused:
        return Cause(
            Kind.PAUSED, task.open_groups, f"it is paused; {task.open_groups} groups are still in flight. `marlaas resume` continues"
        )
    if not replicas.environments:
        return Cause(Kind.NO_REPLICA, 0, f"0 environment replicas serve '{task.environment}'; 1 is needed")
    if task.checks is not None:
        return Cause(Kind.QUOTA, task.checks, f"{task.checks} other tasks of its tenant are checked at '{task.environment}', the maximum")
    if not task.is_accepted:
        return Cause(Kind.ENVIRONMENT, replicas.environments, f"{replicas.environments} environment replicas have its check to answer")
    if task.queue is not None:
        return _with_the_trainers(task, task.queue, replicas)
    if not replicas.samplers:
        return Cause(Kind.NO_REPLICA, 0, f"0 rollout replicas serve pool '{task.pool}'; 1 is needed")
    if task.allowance > 0:
        return _not_admitted(task, places, limits)
    if not task.open_groups:
        return None
    has_room = replicas.sampled < IDLE_SHARE * replicas.sequences
    if task.oldest_s >= LATE * task.timeout_s and has_room:
        oldest = f"its oldest group has taken {task.oldest_s:.0f} of {task.timeout_s:.0f} s while the samplers have room"
        return Cause(Kind.ENVIRONMENT, round(task.oldest_s), f"{oldest}: environment '{task.environment}' is slow")
    missing = max(1, task.groups_per_step - task.ready_groups)
    return Cause(Kind.PACE, missing, f"its next step needs {missing} more of its own groups; {task.open_groups} are in flight")


def _with_the_trainers(task: WaitingTask, queue: TrainerQueue, replicas: Replicas) -> Cause:
    if not replicas.trainers:
        return Cause(Kind.NO_REPLICA, 0, f"0 trainers serve pool '{task.pool}'; 1 is needed")
    position = queue.before + 1
    seconds = None if queue.step_s is None else position * queue.step_s / replicas.trainers
    expected = "how long steps take here is not known yet" if seconds is None else f"about {seconds:.0f} s at {queue.step_s:.1f} s a step"
    return Cause(Kind.TRAINER, position, f"its step is number {position} with {replicas.trainers} trainers: {expected}")


def _not_admitted(task: WaitingTask, places: Places, limits: Limits) -> Cause | None:
    needed = task.group.sequences
    if limits.max_tokens is not None and limits.used_tokens >= limits.max_tokens:
        return Cause(Kind.BUDGET, limits.max_tokens, f"its tenant has used {limits.used_tokens} of {limits.max_tokens} tokens")
    if limits.max_sequences is not None and places.tenant and places.tenant + needed > limits.max_sequences:
        held = f"its tenant has {places.tenant} of at most {limits.max_sequences} sequences in flight"
        return Cause(Kind.QUOTA, limits.max_sequences, f"{held}, and its next group needs {needed}")
    total, capacity = places.total, places.capacity
    if not total.sequences or (total + task.group).fits(capacity):
        return None
    by_sequences = total.sequences + needed > capacity.sequences
    what = f"{capacity.sequences:.0f} sequences" if by_sequences else f"{capacity.kv_tokens:.0f} tokens of KV cache"
    in_flight = total.sequences if by_sequences else round(total.tokens)
    missing = needed if by_sequences else round(task.group.tokens)
    full = f"pool '{task.pool}' takes {what}, {in_flight} are in flight and its next group needs {missing}"
    if places.own == total.sequences:
        return Cause(Kind.CAPACITY, round(capacity.sequences if by_sequences else capacity.kv_tokens), f"{full}; all are its own")
    held = (
        f"of {total.sequences} sequences it holds {places.own}, its tenant's other tasks {places.siblings}, other tenants {places.others}"
    )
    return Cause(Kind.SHARE, total.sequences - places.own, f"{full}; {held}")
