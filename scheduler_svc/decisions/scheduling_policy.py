"""The scheduling policy: which running tasks may open groups, how many, and whose steps leave for the trainer. Pure.

    asynchronous   every task at its own pace (`admission.py`); nobody waits for another task
    sequential     one task at a time, in the order in which they were accepted
    synchronous    all tasks in lockstep: each samples one step, then all are trained, then the next round

The last two exist to measure the first against (the baselines of arXiv 2605.08527); everything else is the same under each.
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
    """Where a running task is."""

    task: str
    accepted_at: datetime
    allowance: int
    """Groups that its own pace allows beyond those admitted."""
    lockstep_allowance: int
    """The same with no step begun before the one in hand is trained."""
    has_step_ready: bool
    """A whole step is sampled and scored."""
    is_training: bool
    """A step of it is with the trainer."""


def allowances(policy: SchedulingPolicy, tasks: Sequence[TaskSnapshot]) -> dict[str, int]:
    """Groups that each task may open now, as far as the policy goes; absent tasks none."""
    if policy is SchedulingPolicy.SEQUENTIAL:
        first = min(tasks, key=lambda task: (task.accepted_at, task.task), default=None)
        return {first.task: first.allowance} if first else {}
    if policy is SchedulingPolicy.SYNCHRONOUS:
        in_training = any(task.is_training for task in tasks)
        return {} if in_training else {task.task: task.lockstep_allowance for task in tasks}
    return {task.task: task.allowance for task in tasks}


def steps_to_send_together(tasks: Sequence[TaskSnapshot]) -> list[str]:
    """In lockstep: every task, once each has its step sampled and none is still being trained; until then none."""
    if all(task.has_step_ready and not task.is_training for task in tasks):
        return [task.task for task in tasks]
    return []
