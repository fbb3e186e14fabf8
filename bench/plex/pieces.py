"""Operations of simulated tasks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from common.accelerators import Function
from common.accelerators.trace import Task

NUMBERS = count()


@dataclass
class Operation:
    """One operation of a task, ready or running. Times in seconds; `left_s` as if alone."""

    task: Task
    function: Function
    work_s: float
    left_s: float
    ready_s: float
    done: Callable[[], None]
    first_ready_s: float = 0.0
    has_run: bool = False
    number: int = field(default_factory=lambda: next(NUMBERS))
    """The same once it was frozen."""
