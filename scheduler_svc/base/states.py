"""The states of tasks, groups, trajectories, steps, packages and slices. Each is also a CHECK constraint.

    task        submitted ──▶ running ◀──▶ paused          submitted ──▶ rejected
                    │            │            │             (the environment refused its options)
                    └────────────┴────────────┴──▶ cancelled · failed
                                 └──▶ finished

    group       open ──▶ ready ──▶ batched ──▶ trained      any of the first three ──▶ void (with a reason)
        of an evaluation   planned ──▶ open ──▶ ended (complete, or abandoned with a detail)
    trajectory  open ──▶ scored ──────────────▶ trained      either of the first two ──▶ void (with a reason)
        of an evaluation   open ──▶ evaluated · void (with a reason)
    step        batched ──▶ trained                          batched ──▶ void (its task ended first)
    evaluation  running ──▶ finished                         running ──▶ void (its task ended first)
    package     uploading ──▶ checking ──▶ usable · refused ──▶ uploading (sent once more)      any of them ──▶ deleting
    slice       ordered ──▶ awake ──▶ ended (why: SliceEnd) ──▶ booked      ordered ──▶ ended (its executor never woke)
    executor    cold ──▶ waking ──▶ awake ──▶ parking ──▶ parked ──▶ waking      any of them ──▶ faulty ──▶ waking (after its back-off)
                any of them ──▶ cold, its tier `off` (no process reports)

A group is ready when every member is scored. Void groups are refilled: they do not count against the task's pace.
"""

from enum import StrEnum


class TaskState(StrEnum):
    SUBMITTED = "submitted"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    REJECTED = "rejected"


LIVE = (TaskState.SUBMITTED, TaskState.RUNNING, TaskState.PAUSED)


class GroupState(StrEnum):
    PLANNED = "planned"
    OPEN = "open"
    READY = "ready"
    BATCHED = "batched"
    TRAINED = "trained"
    VOID = "void"
    ENDED = "ended"


class TrajectoryState(StrEnum):
    OPEN = "open"
    SCORED = "scored"
    EVALUATED = "evaluated"
    TRAINED = "trained"
    VOID = "void"


class StepState(StrEnum):
    BATCHED = "batched"
    TRAINED = "trained"
    VOID = "void"


class EvaluationState(StrEnum):
    RUNNING = "running"
    FINISHED = "finished"
    VOID = "void"


class VoidReason(StrEnum):
    """Why sampled work was not trained; `failed` comes with details."""

    STALE = "stale"
    CANCELLED = "cancelled"
    FAILED = "failed"
    DEADLINE = "deadline"
    ZERO_VARIANCE = "zero_variance"


class PackageKind(StrEnum):
    PACKAGE = "package"
    FILE = "file"


class PackageState(StrEnum):
    UPLOADING = "uploading"
    """Parts are missing."""
    CHECKING = "checking"
    USABLE = "usable"
    REFUSED = "refused"
    DELETING = "deleting"
    """No task can name it any more; its blob and its row go next."""


class SliceReason(StrEnum):
    """Why a slice was ordered: the decision's reason, or one of its own."""

    FIRST = "first"
    OVERDUE = "overdue"
    RATIO = "ratio"
    RESIDENT = "resident"
    ORDER = "order"
    OPERATOR = "operator"
    """An operator ordered it."""


class SliceEnd(StrEnum):
    """Why a slice ended."""

    SWITCHED = "switched"
    """Another executor's was ordered; it began at the same moment."""
    FINISHED = "finished"
    """Its pool has no running task any more."""
    FAULTY = "faulty"
    """Its executor could not wake."""
    DIED = "died"
    """Its executor's process ended, or reports no more."""
    FENCED = "fenced"
    """Its executor parked itself, since nothing confirmed its lease."""
    HELD = "held"
    """An operator parked it."""
    REMOVED = "removed"
    """The pools file has its executor no more."""


class Hold(StrEnum):
    """What an operator ordered of an executor."""

    PARK = "park"
    """It gets no slice, and what it has ends with what runs, frozen where it can be."""
    DRAIN = "drain"
    """The same, but what runs ends first."""
    WAKE = "wake"
    """The next slice is its own; once it has begun, it is as if nothing was ordered. Where moves are measured (`executors.measured`),
    it is parked then, and the next slice is its own once more."""
