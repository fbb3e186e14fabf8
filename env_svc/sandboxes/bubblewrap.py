"""The door to bubblewrap (`bwrap`): CPython in namespaces of its own, without a daemon.

The code sees an interpreter, its libraries and an empty /tmp, and nothing else of this machine: no network, no other
process, no environment variables. It has no capabilities, and its limits are the kernel's. Where the service runs as root,
each run has a user id of its own, because root's processes are not counted; elsewhere, a user namespace of its own.
"""

import asyncio
import math
import os
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path

from common.errors import Fatal
from env_svc.sandboxes.prelude import PRELUDE, READY, Rlimits, standard_input
from env_svc.sandboxes.printed import Printed, PrintedTooMuch
from env_svc.sandboxes.sandbox import MIB, Bounds, Ran, Sandbox, SandboxUnavailable, Stopped, ended

FIRST_USER = 2_000_000
"""Of the ids that runs have where the service is root; nobody else's, as system users and containers end far below."""
SCRATCH_BYTES = 16 * MIB
START_TIMEOUT_S = 20.0
CHUNK_BYTES = 64 * 1024
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


class BubblewrapSandbox(Sandbox):
    """At most `runs` at once; others wait."""

    def __init__(self, runs: int) -> None:
        self._users: asyncio.Queue[int] = asyncio.Queue()
        for number in range(runs):
            self._users.put_nowait(FIRST_USER + number)
        self._is_root = os.geteuid() == 0
        self._bwrap = shutil.which("bwrap")

    async def start(self) -> None:
        if self._bwrap is None:
            raise Fatal("the sandbox 'bubblewrap' needs the program bwrap: install the package bubblewrap")
        try:
            await self._try_out("bubblewrap")
        except SandboxUnavailable as error:
            raise Fatal(f"the sandbox 'bubblewrap' does not work on this machine: {error}") from None

    async def run(self, source: str, bounds: Bounds) -> Ran:
        user = await self._users.get()
        try:
            return await self._run(source, bounds, user if self._is_root else 0)
        finally:
            self._users.put_nowait(user)

    async def close(self) -> None:
        """Nothing outlives its run."""

    async def _run(self, source: str, bounds: Bounds, user: int) -> Ran:
        try:
            # With no environment at all, and in a group of its own, which ends as one.
            process = await asyncio.create_subprocess_exec(
                self._bwrap or "bwrap",
                *_arguments(is_root=self._is_root),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env={},
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxUnavailable(f"bwrap does not start: {error}") from error
        limits = Rlimits(bounds.memory_bytes, cpu_s=math.ceil(bounds.time_s) + 1, processes=bounds.processes)
        try:
            return await _watched(process, standard_input(source, limits, user), bounds)
        finally:
            await _end(process)


async def _watched(process: Process, given: bytes, bounds: Bounds) -> Ran:
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    printed = Printed(bounds.output_bytes)
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
            reading.create_task(_read(process.stdout, printed, is_error=False))
            reading.create_task(_read(process.stderr, printed, is_error=True))
            reading.create_task(process.wait())
    except TimeoutError:
        stopped = "time"
    except ExceptionGroup as group:
        if group.split(PrintedTooMuch)[1] is not None:
            raise
        stopped = "output"
    return ended(printed, stopped, process.returncode)


async def _end(process: Process) -> None:
    """Kill the process, and with it all of its namespace."""
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    with suppress(ProcessLookupError):
        process.kill()
    process.stdin.close()
    # `wait` waits for the end of the pipes too, and one that is full is paused and does not tell its end until it is read.
    for stream in (process.stdout, process.stderr):
        while await stream.read(CHUNK_BYTES):
            pass
    await process.wait()


async def _read(stream: asyncio.StreamReader, printed: Printed, *, is_error: bool) -> None:
    while data := await stream.read(CHUNK_BYTES):
        printed.add(data, is_error=is_error)


def _arguments(*, is_root: bool) -> list[str]:
    runtime = Path(sys.base_prefix)
    python = Path(sys.executable).resolve()
    visible = [str(python)] if runtime == Path("/usr") else [str(runtime)]
    if is_root:
        apart = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        # For the prelude to become another user; it loses both by that.
        apart += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        apart = ["--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--uid", "65534", "--gid", "65534"]
    arguments = [*apart, "--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox"]
    # Folders above what is bound would otherwise be root's alone.
    for folder in sorted({str(above) for path in (*LIBRARIES, *visible, *DEVICES) for above in Path(path).parents if str(above) != "/"}):
        arguments += ["--perms", "0755", "--dir", folder]
    for library in LIBRARIES:
        arguments += ["--ro-bind-try", library, library]
    for path in visible:
        arguments += ["--ro-bind", path, path]
    for device in DEVICES:
        arguments += ["--dev-bind", device, device]
    arguments += ["--proc", "/proc", "--perms", "1777", "--size", str(SCRATCH_BYTES), "--tmpfs", "/tmp", "--remount-ro", "/"]
    return [*arguments, "--chdir", "/tmp", str(python), "-I", "-S", "-c", PRELUDE]
