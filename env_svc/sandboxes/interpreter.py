"""Run of a CPython process that reads its code from standard input, for the sandboxes `bubblewrap` and `confined`."""

import asyncio
import json
import math
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from env_svc.errors import SandboxUnavailable
from env_svc.sandboxes.sandbox import MIB, Bounds, CapturedOutput, OutputLimitExceeded, RunResult, Stopped, run_result

FIRST_USER = 2_000_000
"""First user id of runs if the service is root; ids of system users and containers are far lower."""
PROCESSES = 256
USERS_OF_A_PROCESS = 256
"""User ids of one process's runs. Processes whose ids are equal modulo PROCESSES share theirs."""
SCRATCH_BYTES = 16 * MIB
START_TIMEOUT_S = 20.0
CHUNK_BYTES = 64 * 1024
Limit = Callable[[], Coroutine[Any, Any, None]]


READY = b"\x06"
"""Written to standard output right before the code starts."""


MAX_FILE_BYTES = 16 * 2**20


MAX_OPEN_FILES = 64


PRELUDE = r"""
import os, resource, sys
limits, user, size = eval(sys.stdin.buffer.readline())
source = sys.stdin.buffer.read(size)
os.dup2(os.open('/dev/null', os.O_RDONLY), 0)
#first
if user:
    os.setgroups([]); os.setresgid(user, user, user); os.setresuid(user, user, user)
for name, most in limits.items():
    resource.setrlimit(getattr(resource, name), (most, most))
#last
main = sys.modules['__main__'] = type(sys)('__main__')
main.__builtins__ = __builtins__
os.write(1, b'\x06')
try:
    exec(compile(source, 'main.py', 'exec', dont_inherit=True), main.__dict__)
except Exception as error:
    import linecache, traceback
    linecache.cache['main.py'] = len(source), None, source.decode(errors='replace').splitlines(True), 'main.py'
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
    traceback.print_exception(error, limit=-8)
    sys.exit(1)
"""


def prelude(definitions: str = "", first: str = "", last: str = "") -> str:
    """The first program of a run. `first`: statements before it changes its user; `last`: statements after its limits are set."""
    return definitions + PRELUDE.replace("#first", first).replace("#last", last)


@dataclass(frozen=True)
class Rlimits:
    """Kernel limits of each process of a run."""

    memory_bytes: int
    cpu_s: int
    processes: int | None = None
    """Maximum processes and threads; None if the sandbox limits them in another way."""

    def named(self) -> dict[str, int]:
        limits = {
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_CPU": self.cpu_s,
            "RLIMIT_FSIZE": MAX_FILE_BYTES,
            "RLIMIT_NOFILE": MAX_OPEN_FILES,
            "RLIMIT_CORE": 0,
        }
        return limits if self.processes is None else {**limits, "RLIMIT_NPROC": self.processes}


def standard_input(source: str, limits: Rlimits, user: int = 0) -> bytes:
    """The prelude's input. `user`: the user id to change to, if it starts as root; 0: none."""
    code = source.encode(errors="replace")
    header = json.dumps([limits.named(), user, len(code)])
    return f"{header}\n".encode() + code


def python() -> Path:
    return Path(sys.executable).resolve()


def visible_paths() -> list[str]:
    """The interpreter and its own library, without the packages of the service's virtual environment."""
    return [str(python())] if Path(sys.base_prefix) == Path("/usr") else [sys.base_prefix]


def users(runs: int) -> range:
    """User ids of concurrent runs, others than those of other replicas on this machine: the kernel counts processes by user."""
    first = FIRST_USER + os.getpid() % PROCESSES * USERS_OF_A_PROCESS
    return range(first, first + runs)


def cpu_limit_s(bounds: Bounds) -> int:
    return math.ceil(bounds.time_s) + 1


async def run_to_end(process: Process, given: bytes, bounds: Bounds, limit: Limit | None = None) -> RunResult:
    """Run code to its end or to a limit. `limit`: waits until a limit of the sandbox besides `bounds` is exceeded; it counts as memory.

    Raises: SandboxUnavailable when the interpreter does not start.
    """
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    printed = CapturedOutput(bounds.output_bytes)
    stopped: Stopped | None = None
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            with suppress(BrokenPipeError, ConnectionResetError):
                process.stdin.write(given)
                await process.stdin.drain()
            if await process.stdout.read(len(READY)) != READY:
                reason = (await process.stderr.read(CHUNK_BYTES)).decode(errors="replace").strip()
                raise SandboxUnavailable(reason[-300:] or "the interpreter did not start")
    except TimeoutError:
        raise SandboxUnavailable(f"the interpreter did not start within {START_TIMEOUT_S:g} s") from None
    try:
        async with asyncio.timeout(bounds.time_s), asyncio.TaskGroup() as reading:
            ending = [
                reading.create_task(_read(process.stdout, printed, is_error=False)),
                reading.create_task(_read(process.stderr, printed, is_error=True)),
                reading.create_task(_wait(process)),
            ]
            if limit is not None:
                over = reading.create_task(_passed(limit()))
                reading.create_task(_cancel_after(ending, over))
    except TimeoutError:
        stopped = "time"
    except ExceptionGroup as group:
        if group.split((OutputLimitExceeded, _SandboxLimitExceeded))[1] is not None:
            raise
        stopped = "memory" if group.split(_SandboxLimitExceeded)[0] is not None else "output"
    return run_result(printed, stopped, process.returncode)


async def end(process: Process) -> None:
    """Kill the process, and drain its pipes."""
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    with suppress(ProcessLookupError):
        process.kill()
    process.stdin.close()
    # `wait` also waits for the end of the pipes, and a full pipe is paused and reports no end until it is read.
    for stream in (process.stdout, process.stderr):
        while await stream.read(CHUNK_BYTES):
            pass
    await process.wait()


class _SandboxLimitExceeded(Exception):
    """The run has exceeded a limit of its sandbox."""


async def _wait(process: Process) -> None:
    await process.wait()


async def _passed(limit: Coroutine[Any, Any, None]) -> None:
    await limit
    raise _SandboxLimitExceeded


async def _cancel_after(ending: "list[asyncio.Task[None]]", over: "asyncio.Task[None]") -> None:
    await asyncio.gather(*ending)
    over.cancel()


async def _read(stream: asyncio.StreamReader, printed: CapturedOutput, *, is_error: bool) -> None:
    while data := await stream.read(CHUNK_BYTES):
        printed.add(data, is_error=is_error)
