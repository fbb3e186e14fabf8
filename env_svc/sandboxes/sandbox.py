"""What a sandbox is: runs Python source that nobody trusts, within limits, and tells what it printed.

The implementations (`bubblewrap.py`, `docker.py`, `confined.py`, `monty.py`) pass the same tests, escape attempts included. Each run
starts from nothing: no network, no files of the host, none of its environment variables, no memory of an earlier run.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from common.errors import Fatal
from env_svc.sandboxes.output import CapturedOutput

MIB = 2**20

Stopped = Literal["time", "memory", "output"]


@dataclass(frozen=True)
class Bounds:
    """What one run may use."""

    time_s: float = 5.0
    """On the clock, the start of the interpreter not counted."""
    memory_bytes: int = 256 * MIB
    output_bytes: int = 16 * 1024
    """Printed; a run that prints more is ended."""
    processes: int = 8
    """Processes and threads at once. In bubblewrap each of them has `memory_bytes`."""


TRIAL = Bounds(time_s=30.0)
"""At the start, when a machine is busy with starting everything."""


@dataclass(frozen=True)
class Ran:
    """How a run ended."""

    output: str
    """What it printed on standard output, at most `output_bytes` of it."""
    error: str = ""
    """What ended it: the last lines of a traceback, or the signal; empty when it came to its end."""
    stopped: Stopped | None = None
    """The limit that ended it."""

    @property
    def is_complete(self) -> bool:
        """It came to its end by itself and without an error."""
        return not self.error and self.stopped is None


def run_result(printed: CapturedOutput, stopped: Stopped | None, status: int | None) -> Ran:
    """How a process ended that a limit `stopped`, or that ended with this exit status (negative, or above 128: by a signal)."""
    last = printed.error.strip().rpartition("\n")[2]
    if stopped is None and (last.startswith("MemoryError") or status in (-9, 137)):
        stopped = "memory"
    if stopped is None and status in (-24, 152):
        stopped = "time"
    if stopped is not None:
        return Ran(printed.output, printed.error, stopped)
    return Ran(printed.output, (printed.error or f"exit status {status}") if status else "")


class Sandbox(ABC):
    """Runs source code, many at once."""

    name: ClassVar[str]
    """As MARLAAS_ENV_SANDBOX names it."""

    @property
    @abstractmethod
    def meaning(self) -> str:
        """What it is, in one line, for operators and for authors of tasks."""

    def unsupported(self, error: str) -> str | None:  # noqa: ARG002 (CPython lacks nothing)
        """The line of an error that this sandbox, and not the program, is the cause of; None where the program is."""
        return None

    def differs(self, source: str) -> str | None:  # noqa: ARG002 (CPython differs in nothing)
        """What in a program means something else here than in CPython, without an error; None where nothing is known."""
        return None

    @abstractmethod
    async def start(self) -> None:
        """Raises: Fatal when this machine cannot run it, with one line that says why."""

    @abstractmethod
    async def run(self, source: str, bounds: Bounds) -> Ran:
        """Raises: SandboxUnavailable when the sandbox failed. Whatever the code does is a value."""

    @abstractmethod
    async def close(self) -> None:
        """End what runs and remove what is left of it."""

    async def _try_out(self, name: str) -> None:
        """Run what is sure to work. Raises: Fatal, SandboxUnavailable."""
        ran = await self.run("print(6 * 7)", TRIAL)
        if ran != Ran("42\n"):
            reason = ran.error or (f"a run of nothing was stopped: {ran.stopped}" if ran.stopped else f"it printed {ran.output!r}")
            raise Fatal(f"the sandbox '{name}' does not work on this machine: {reason}")
