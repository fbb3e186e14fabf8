"""What a simulated executor measures of its operations: the meters of the sampler's and of the trainer's service themselves."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

from bench.plex.pieces import Operation
from common.accelerators import Function, WorkDone
from common.accelerators.trace import Executor
from common.leases.history import Tally
from common.leases.reports import REPORT_S
from rollout_svc.engine.work import Entry, WorkMeter
from trainer_svc.device.meter import ServiceMeter


class Meter(Protocol):
    """Of one executor. Operations that are frozen stay begun."""

    @property
    def left_s(self) -> float | None:
        """Expected seconds until all that is begun has ended; None where nothing is, or nothing is known."""
        ...

    def begin(self, one: Operation) -> None: ...

    def end(self, one: Operation) -> None: ...

    def park(self) -> None: ...

    def wake(self) -> None: ...

    def taken(self) -> WorkDone: ...


class SamplerMeter:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._work = WorkMeter(clock)
        self._work.stop()
        self._inside: dict[int, Entry] = {}

    @property
    def left_s(self) -> float | None:
        return self._work.left_s()

    def begin(self, one: Operation) -> None:
        if one.number not in self._inside:
            self._inside[one.number] = self._work.begin(str(one.number), one.task.task)

    def end(self, one: Operation) -> None:
        self._work.end(self._inside.pop(one.number))

    def park(self) -> None:
        self._work.stop()

    def wake(self) -> None:
        self._work.go()

    def taken(self) -> WorkDone:
        return self._work.taken({})


class TrainerMeter:
    """All steps are expected to have equally many tokens: a trace does not say how many."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._meter = ServiceMeter(clock)
        self._running = ExitStack()

    @property
    def left_s(self) -> float | None:
        return self._meter.left_s

    def begin(self, one: Operation) -> None:
        self._running.enter_context(self._meter.computing({one.task.task: 1}, pieces=1))

    def end(self, one: Operation) -> None:  # noqa: ARG002  # one step at a time
        self._running.close()

    def park(self) -> None:
        """No step is interrupted."""

    def wake(self) -> None:
        pass

    def taken(self) -> WorkDone:
        return self._meter.taken()


class Measures:
    """The tally of one executor, which is looked at as often as its reporter does."""

    def __init__(self, table: Executor, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.meter: Meter = SamplerMeter(clock) if Function.GENERATE in table.functions else TrainerMeter(clock)
        self._tally = Tally(self.meter)
        self._looked_s = clock()

    @property
    def piece_s(self) -> float | None:
        """Mean seconds of an operation; None before the first."""
        return self._tally.piece_s

    def wake(self) -> None:
        self.meter.wake()
        self._tally.begin()

    def park(self) -> None:
        self._tally.look()
        self.meter.park()

    def look(self) -> None:
        """To be called when operations have ended."""
        if self._clock() >= self._looked_s + REPORT_S:
            self._tally.look()
            self._looked_s = self._clock()
