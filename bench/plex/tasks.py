"""Tasks that go through their steps on simulated accelerators, and one run on one accelerator."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from bench.plex.accelerator import Policy, SharedAccelerator
from bench.plex.events import Events
from bench.plex.pieces import Operation
from common.accelerators import Function, Tier
from common.accelerators.trace import ENVIRONMENT, Phase, Task, Trace
from scheduler_svc.accelerators.decisions.state import Rules


@dataclass
class RunningTask:
    """A task on an accelerator: one phase after another, strictly on policy."""

    task: Task
    accelerator: SharedAccelerator
    events: Events
    step_s: list[float] = field(default_factory=list[float])
    """Duration of each step."""
    ended_s: float | None = None
    _began_s: float = 0.0
    _open: int = 0
    """Trajectories of the step that have not ended."""

    def start(self) -> None:
        self._began_s = self.events.now_s
        self._begin_step()

    def _begin_step(self) -> None:
        number = len(self.step_s)
        if number == len(self.task.steps):
            self.ended_s = self.events.now_s
            return
        members = self.task.members_of(number)
        self._open = len(members)
        for phases in members:
            self._go(phases, 0, self._end_member)
        if not members:
            self._go(self.task.steps[number], 0, self._end_step)

    def _end_member(self) -> None:
        self._open -= 1
        if not self._open:
            self._go(self.task.steps[len(self.step_s)], 0, self._end_step)

    def _end_step(self) -> None:
        self.step_s.append(self.events.now_s - self._began_s)
        self._began_s = self.events.now_s
        self._begin_step()

    def _go(self, phases: Sequence[Phase], number: int, then: Callable[[], None]) -> None:
        """Do `phases` from `number` on, one after another, and `then`."""
        if number == len(phases):
            then()
            return
        (what, seconds), now_s = phases[number], self.events.now_s
        if what == ENVIRONMENT:
            self.events.at(now_s + seconds, lambda: self._go(phases, number + 1, then))
            return
        function, work_s, following = _operation(phases, number)
        operation = Operation(self.task, function, work_s, work_s, now_s, lambda: self._go(phases, following, then))
        self.accelerator.submit(operation)


def _operation(phases: Sequence[Phase], number: int) -> tuple[Function, float, int]:
    """Function and seconds of the operation that begins with a phase, and the number of the phase after it.

    What a step scores and trains is one operation: its executor has both from one message, and nothing comes between.
    """
    function, seconds = Function(phases[number][0]), phases[number][1]
    if function is Function.SCORE and number + 1 < len(phases) and phases[number + 1][0] == Function.TRAIN:
        return Function.TRAIN, seconds + phases[number + 1][1], number + 2
    return function, seconds, number + 1


@dataclass(frozen=True)
class Run:
    """One trace on one accelerator."""

    accelerator: SharedAccelerator
    tasks: list[RunningTask]
    makespan_s: float
    """From the first submission to the end of the last task; the accelerator is held for all of it."""


def simulate(
    trace: Trace, rules: Rules, seed: int, *, until_s: float = float("inf"), is_awake: bool = False, policy: Policy | None = None
) -> Run:
    """Play `trace` on one accelerator. Equal arguments give equal runs.

    `is_awake`: executors are on the device at first, where all of them must fit; else in host memory. `policy`: instead of the one that
    the rules name.
    Raises: RuntimeError when tasks can never end, because the state of an executor does not fit into the budget.
    """
    events = Events()
    accelerator = SharedAccelerator(rules, events, Random(seed), policy)
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
