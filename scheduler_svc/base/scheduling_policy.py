"""Scheduling policy: which running tasks may open groups, how many, and whose steps are sent to the trainer. Pure.

asynchronous   each task at its own pace (`admission.py`), without waiting for others
sequential     one task at a time, in order of acceptance
synchronous    all tasks in lockstep: each samples one step, then all are trained, then the next round

The last two are baselines for measurements (arXiv 2605.08527); all else is equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class SchedulingPolicy(StrEnum):
    ASYNCHRONOUS = "asynchronous"
    SEQUENTIAL = "sequential"
    SYNCHRONOUS = "synchronous"


@dataclass(frozen=True)
class TaskSnapshot:
    """State of a running task that policies use."""

    task: str
    accepted_at: datetime
    allowance: int
    """Groups that the task's pace allows beyond those admitted."""
    lockstep_allowance: int
    """As `allowance`, if no step begins before the current one is trained."""
    has_step_ready: bool
    """Whether all groups of the next step are scored."""
    is_training: bool
    """Whether a step of the task is at the trainer."""


def allowances(policy: SchedulingPolicy, tasks: Sequence[TaskSnapshot]) -> dict[str, int]:
    """Groups that the policy allows each task to open now; tasks that are absent may open none."""
    if policy is SchedulingPolicy.SEQUENTIAL:
        first = min(tasks, key=lambda task: (task.accepted_at, task.task), default=None)
        return {first.task: first.allowance} if first else {}
    if policy is SchedulingPolicy.SYNCHRONOUS:
        in_training = any(task.is_training for task in tasks)
        return {} if in_training else {task.task: task.lockstep_allowance for task in tasks}
    return {task.task: task.allowance for task in tasks}


def steps_to_send_together(tasks: Sequence[TaskSnapshot]) -> list[str]:
    """Tasks whose steps are sent in lockstep: all, once each has its step ready and none is in training; until then none."""
    if all(task.has_step_ready and not task.is_training for task in tasks):
        return [task.task for task in tasks]
    return []
