"""Interface of sandboxes: runs untrusted Python source within limits and returns its output.

The implementations (`bubblewrap.py`, `docker.py`, `confined.py`, `monty.py`) pass the same tests, escape attempts included. Each run
starts from nothing: no network, no files of the host, none of its environment variables, no memory of an earlier run."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from common.errors import Fatal

MIB = 2**20

Stopped = Literal["time", "memory", "output"]


MAX_ERROR_CHARS = 2_000
"""Maximum characters of a run's standard error: the last ones, where a traceback has its message."""


class OutputLimitExceeded(Exception):
    """The run has printed more than its limit and must be ended."""


class CapturedOutput:
    """Standard output and standard error of one run; the limit is on both together."""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._output = bytearray()
        self._error = bytearray()
        self.is_too_much = False

    def add(self, data: bytes, *, is_error: bool = False) -> None:
        """Raises: OutputLimitExceeded, after keeping what fits."""
        (self._error if is_error else self._output).extend(data[: self._left])
        if len(data) > self._left:
            self.is_too_much, self._left = True, 0
            raise OutputLimitExceeded
        self._left -= len(data)

    @property
    def output(self) -> str:
        return self._output.decode(errors="replace")

    @property
    def error(self) -> str:
        return self._error.decode(errors="replace")[-MAX_ERROR_CHARS:]


@dataclass(frozen=True)
class Bounds:
    """Limits of one run."""

    time_s: float = 5.0
    """Wall-clock seconds, without the interpreter's start."""
    memory_bytes: int = 256 * MIB
    output_bytes: int = 16 * 1024
    """Maximum output; a run that prints more is ended."""
    processes: int = 8
    """Maximum concurrent processes and threads. In bubblewrap, each process may use `memory_bytes`."""


TRIAL = Bounds(time_s=30.0)
"""Limits of the trial run at the start. Its time is long, because the machine is busy then."""


@dataclass(frozen=True)
class RunResult:
    """Result of a run."""

    output: str
    """Standard output, cut at `output_bytes`."""
    error: str = ""
    """Last lines of a traceback, or the signal; empty when the run completed."""
    stopped: Stopped | None = None
    """The limit that ended the run; None: it ended by itself."""

    @property
    def is_complete(self) -> bool:
        """Whether the run ended by itself and without an error."""
        return not self.error and self.stopped is None


def run_result(printed: CapturedOutput, stopped: Stopped | None, status: int | None) -> RunResult:
    """Result of a process that a limit `stopped`, or that ended with this exit status (negative, or above 128: by a signal)."""
    last = printed.error.strip().rpartition("\n")[2]
    if stopped is None and (last.startswith("MemoryError") or status in (-9, 137)):
        stopped = "memory"
    if stopped is None and status in (-24, 152):
        stopped = "time"
    if stopped is not None:
        return RunResult(printed.output, printed.error, stopped)
    return RunResult(printed.output, (printed.error or f"exit status {status}") if status else "")


class Sandbox(ABC):
    """Runs source code, many runs concurrently."""

    name: ClassVar[str]
    """Name in MARLAAS_ENV_SANDBOX."""

    @property
    @abstractmethod
    def meaning(self) -> str:
        """Description in one line, for operators and authors of tasks."""

    def unsupported(self, error: str) -> str | None:  # noqa: ARG002 (CPython lacks nothing)
        """The line of `error` that names a lack of this sandbox; None if the program itself is wrong."""
        return None

    def differs(self, source: str) -> str | None:  # noqa: ARG002 (CPython differs in nothing)
        """The part of a program that runs differently here than in CPython, without an error; None if none is known."""
        return None

    @abstractmethod
    async def start(self) -> None:
        """Start the sandbox. Raises: Fatal, with the reason in one line, if this machine cannot run it."""

    @abstractmethod
    async def run(self, source: str, bounds: Bounds) -> RunResult:
        """The run's result, for any code. Raises: SandboxUnavailable when the sandbox failed."""

    @abstractmethod
    async def close(self) -> None:
        """End all runs and remove their remains."""

    async def _try_out(self, name: str) -> None:
        """Run a trivial program. Raises: Fatal, SandboxUnavailable."""
        ran = await self.run("print(6 * 7)", TRIAL)
        if ran != RunResult("42\n"):
            reason = ran.error or (f"a run of nothing was stopped: {ran.stopped}" if ran.stopped else f"it printed {ran.output!r}")
            raise Fatal(f"the sandbox '{name}' does not work on this machine: {reason}")
