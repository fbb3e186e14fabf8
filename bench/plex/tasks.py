"""Tasks that go through their steps on simulated accelerators, and one run on one accelerator."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from bench.plex.accelerator import SharedAccelerator
from bench.plex.events import Events
from bench.plex.pieces import Operation
from common.accelerators import Function, Tier
from common.accelerators.trace import ENVIRONMENT, Task, Trace
from scheduler_svc.decisions.accelerators.state import Rules


@dataclass
class RunningTask:
    """A task on an accelerator: one phase after another, strictly on policy."""

    task: Task
    accelerator: SharedAccelerator
    events: Events
    ends: Callable[["RunningTask"], None] = lambda _: None
    step_s: list[float] = field(default_factory=list[float])
    """Duration of each step."""
    ended_s: float | None = None
    _phases: list[tuple[bool, str, float]] = field(default_factory=list[tuple[bool, str, float]])
    """Whether a step ends with it, function or environment, seconds; the next one last."""
    _began_s: float = 0.0

    def start(self) -> None:
        self._began_s = self.events.now_s
        for phases in reversed(self.task.steps):
            for number, (what, seconds) in reversed(list(enumerate(phases))):
                self._phases.append((number == len(phases) - 1, what, seconds))
        self._next()

    def _next(self) -> None:
        if not self._phases:
            self.ended_s = self.events.now_s
            self.ends(self)
            return
        ends_step, what, seconds = self._phases.pop()
        if what == ENVIRONMENT:
            self.accelerator.predictions.leaves(self.task, self.events.now_s)
            self.events.at(self.events.now_s + seconds, lambda: self._returned(ends_step))
        else:
            ready_s = self.events.now_s
            self.accelerator.submit(Operation(self.task, Function(what), seconds, seconds, ready_s, lambda: self._done(ends_step)))

    def _returned(self, ends_step: bool) -> None:
        self.accelerator.predictions.returns(self.task, self.events.now_s)
        self._done(ends_step)

    def _done(self, ends_step: bool) -> None:
        if ends_step:
            self.step_s.append(self.events.now_s - self._began_s)
            self._began_s = self.events.now_s
        self._next()


@dataclass(frozen=True)
class Run:
    """One trace on one accelerator."""

    accelerator: SharedAccelerator
    tasks: list[RunningTask]
    makespan_s: float
    """From the first submission to the end of the last task; the accelerator is held for all of it."""


def simulate(
    trace: Trace, rules: Rules, seed: int, *, until_s: float = float("inf"), calibrated: bool = True, is_awake: bool = False
) -> Run:
    """Play `trace` on one accelerator. Equal arguments give equal runs.

    `calibrated`: moves are known before the first one. `is_awake`: executors are on the device at first, where all of them must fit;
    else in host memory.
    Raises: RuntimeError when tasks can never end, because the state of an executor does not fit into the budget.
    """
    events = Events()
    accelerator = SharedAccelerator(rules, events, Random(seed), calibrated=calibrated)
    for table in trace.executors:
        accelerator.add(table, Tier.DEVICE if is_awake else Tier.HOST)
    running = [RunningTask(task, accelerator, events) for task in trace.tasks]
    for one in running:
        events.at(one.task.at_s, one.start)
    events.run(until_s)
    stuck = [one.task.task for one in running if one.ended_s is None]
    if stuck and until_s == float("inf"):
        raise RuntimeError(f"tasks {', '.join(stuck)} never end: check the budget of {rules.budget.device_bytes} bytes on the device")
    accelerator.finish()
    ends = [one.ended_s if one.ended_s is not None else events.now_s for one in running]
    first_s = min((one.task.at_s for one in running), default=0.0)
    return Run(accelerator, running, max(ends, default=0.0) - first_s)
