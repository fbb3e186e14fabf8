"""The states of tasks, groups, trajectories, steps and packages. Each is also a CHECK constraint.

    task        submitted ──▶ running ◀──▶ paused          submitted ──▶ rejected
                    │            │            │             (the environment refused its options)
                    └────────────┴────────────┴──▶ cancelled · failed
                                 └──▶ finished

    group       open ──▶ ready ──▶ batched ──▶ trained      any of the first three ──▶ void (with a reason)
    trajectory  open ──▶ scored ──────────────▶ trained      either of the first two ──▶ void (with a reason)
    step        batched ──▶ trained                          batched ──▶ void (its task ended first)
    evaluation  running ──▶ finished                         running ──▶ void (its task ended first)
        its groups   planned ──▶ open ──▶ ended (complete, or abandoned with a detail)
    package     uploading ──▶ checking ──▶ usable · refused ──▶ uploading (sent once more)      any of them ──▶ deleting

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
    OPEN = "open"
    READY = "ready"
    BATCHED = "batched"
    TRAINED = "trained"
    VOID = "void"


class TrajectoryState(StrEnum):
    OPEN = "open"
    SCORED = "scored"
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


class EvaluationGroupState(StrEnum):
    PLANNED = "planned"
    OPEN = "open"
    ENDED = "ended"


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
