"""Operations of simulated tasks, and what the scheduler would predict of them from those that are done."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.accelerators import Function, away
from common.accelerators.trace import Task
from scheduler_svc.decisions.accelerators import gaps
from scheduler_svc.decisions.accelerators.prediction import MIN_S, Estimate, Piece, expected
from scheduler_svc.decisions.accelerators.state import Quantiles

PRIOR = {function: Estimate(1.0) for function in Function}


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


class Predictions:
    """Estimates of operations, and of the time until pools have work again, as the scheduler and samplers have them on one accelerator."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.estimates: dict[tuple[str, Function], Estimate] = {}
        self.prior: dict[Function, Estimate] = dict(PRIOR)
        self._clock = clock
        self._away: dict[str, away.Away] = {}
        """By pool: what its sampler knows."""
        self._gaps: dict[str, gaps.Gaps] = {}

    def add(self, pool: str) -> None:
        """A pool whose executors are on the accelerator."""
        if pool not in self._away:
            self._away[pool], self._gaps[pool] = away.Away(self._clock), gaps.Gaps([pool], [pool])
            self.has_work(pool, False)

    def observe(self, done: Operation) -> None:
        key = (done.task.task, done.function)
        self.estimates[key] = self.estimates.get(key, self.prior[done.function]).after(done.work_s)
        self.prior[done.function] = self.prior[done.function].after(done.work_s)

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

    def work_s(self, ready: Sequence[Operation], running: Sequence[Operation], gain: Callable[[int], float]) -> float:
        """Expected seconds of what is ready and what is left of what runs."""
        pieces = [Piece(one.task.task, one.function) for one in ready]
        ahead = expected(pieces, self.estimates, self.prior, gain).p50_s if pieces else 0.0
        return max(MIN_S, ahead + (self.left(running, gain).p50_s if running else 0.0))

    def left(self, running: Sequence[Operation], gain: Callable[[int], float]) -> Quantiles:
        """Expected time until all that runs has ended; the scheduler knows estimates and what has run, not what is left."""
        p50 = p90 = 0.0
        for one in running:
            whole = expected([Piece(one.task.task, one.function)], self.estimates, self.prior)
            has_run_s = one.work_s - one.left_s
            p50 += max(MIN_S, whole.p50_s - has_run_s)
            p90 += max(MIN_S, whole.p90_s - has_run_s)
        faster = max(1.0, gain(len(running)))
        return Quantiles(p50 / faster, p90 / faster)
