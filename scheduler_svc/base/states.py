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
    """Why sampled work was not trained; `failed` has a detail."""

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
    """Parts of the upload are missing."""
    CHECKING = "checking"
    USABLE = "usable"
    REFUSED = "refused"
    DELETING = "deleting"
    """No task can reference the package; its blob and its row are deleted next."""


class SliceReason(StrEnum):
    """Why a slice was ordered: a decision's `Reason`, or an operator."""

    FIRST = "first"
    OVERDUE = "overdue"
    RATIO = "ratio"
    RESIDENT = "resident"
    ORDER = "order"
    OPERATOR = "operator"
    """An operator ordered the executor to wake."""


class SliceEnd(StrEnum):
    """Why a slice ended."""

    SWITCHED = "switched"
    """Another executor's slice was ordered, and began when this one ended."""
    FINISHED = "finished"
    """The pool of its executor has no running tasks."""
    FAULTY = "faulty"
    """Its executor could not wake."""
    DIED = "died"
    """Its executor's process ended or stopped reporting."""
    FENCED = "fenced"
    """Its executor parked itself because its lease was not renewed."""
    HELD = "held"
    """An operator ordered its executor to park."""
    REMOVED = "removed"
    """Its executor was removed from the pools file."""


class Hold(StrEnum):
    """An operator's order to an executor."""

    PARK = "park"
    """Park: no new slice; running work is frozen or, if it cannot be, finishes."""
    DRAIN = "drain"
    """Park as `PARK`, but running work finishes first."""
    WAKE = "wake"
    """The executor gets the next slice; the order is cleared once the slice begins.

    If moves are measured (`executors.measured`), the executor is then parked, and gets another slice.
    """
