"""Operations of simulated tasks, and what the scheduler would predict of them from those that are done."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from common.accelerators import Function
from common.accelerators.trace import Task
from scheduler_svc.decisions.accelerators.prediction import MIN_S, Estimate, Latencies, OpenStep, Piece, expected, gap
from scheduler_svc.decisions.accelerators.state import Quantiles

REMEMBERED = 32
"""Newest environment times of a task that predictions use."""
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


@dataclass
class Predictions:
    """Estimates of operations, and times of environments, as observed so far on one accelerator."""

    estimates: dict[tuple[str, Function], Estimate] = field(default_factory=dict[tuple[str, Function], Estimate])
    prior: dict[Function, Estimate] = field(default_factory=lambda: dict(PRIOR))
    environments: dict[str, deque[float]] = field(default_factory=dict[str, deque[float]])
    open_since_s: dict[str, dict[str, list[float]]] = field(default_factory=dict[str, dict[str, list[float]]])
    """By pool and task: when its environments began."""
    _latencies: dict[str, Latencies] = field(default_factory=dict[str, Latencies])

    def observe(self, done: Operation) -> None:
        key = (done.task.task, done.function)
        self.estimates[key] = self.estimates.get(key, self.prior[done.function]).after(done.work_s)
        self.prior[done.function] = self.prior[done.function].after(done.work_s)

    def leaves(self, task: Task, now_s: float) -> None:
        """The task, or one of its trajectories, goes to its environment."""
        self.open_since_s.setdefault(task.pool, {}).setdefault(task.task, []).append(now_s)

    def returns(self, task: Task, since_s: float, now_s: float) -> None:
        """`since_s`: when it went."""
        opened = self.open_since_s[task.pool]
        opened[task.task].remove(since_s)
        if not opened[task.task]:
            del opened[task.task]
        self.environments.setdefault(task.task, deque(maxlen=REMEMBERED)).append(now_s - since_s)
        self._latencies.pop(task.task, None)

    def gap(self, pool: str, now_s: float) -> Quantiles | None:
        """Time until the next work of the pool."""
        found = sorted(self.open_since_s.get(pool, {}).items())
        for task, _ in found:
            if task not in self._latencies and task in self.environments:
                self._latencies[task] = Latencies.of(list(self.environments[task]))
        return gap(now_s, [OpenStep(task, tuple(since_s)) for task, since_s in found], self._latencies)

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
