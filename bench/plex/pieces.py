"""Operations of simulated tasks, and what the scheduler expects of when pools have work again."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from common.accelerators import Function, away
from common.accelerators.trace import Task
from scheduler_svc.decisions.accelerators import gaps
from scheduler_svc.decisions.accelerators.state import Quantiles

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


class Predictions:
    """The time until pools have work again, as the scheduler and samplers expect it on one accelerator."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._away: dict[str, away.Away] = {}
        """By pool: what its sampler knows."""
        self._gaps: dict[str, gaps.Gaps] = {}

    def add(self, pool: str) -> None:
        """A pool whose executors are on the accelerator."""
        if pool not in self._away:
            self._away[pool], self._gaps[pool] = away.Away(self._clock), gaps.Gaps([pool], [pool])
            self.has_work(pool, False)

    def has_work(self, pool: str, has_work: bool) -> None:
        """Whether any executor of the pool has work now."""
        self._gaps[pool].observe(pool, self._clock(), has_work=has_work)

    def leaves(self, task: Task, version: int, member: int, turn: int) -> None:
        """A trajectory of the task goes to its environment."""
        self._away[task.pool].sent(task.task, version, version, [(member, turn)])

    def returns(self, task: Task, version: int, member: int, turn: int) -> None:
        """It comes to the sampler, for the first time or again."""
        self._away[task.pool].came(task.task, version, version, [(member, turn)], self._clock())

    def batched(self, task: Task, version: int) -> None:
        """All members of a step have returned."""
        self._told(task.pool)
        self._gaps[task.pool].batched(task.pool, task.task, version, self._clock())

    def announced(self, task: Task, version: int) -> None:
        self._away[task.pool].announced(task.task, version, self._clock())

    def ended(self, task: Task) -> None:
        self._away[task.pool].ended(task.task)

    def gap(self, pool: str) -> Quantiles | None:
        """Time until the next work of the pool."""
        self._told(pool)
        return self._gaps[pool].expected(pool, self._clock())

    def _told(self, pool: str) -> None:
        """The sampler reports."""
        now_s = self._clock()
        self._gaps[pool].members(pool, pool, now_s, self._away[pool].report(now_s))
