"""Sandbox `confined`: CPython in a process that the kernel confines, without a package, root or a daemon.

It uses the stronger of two kinds (`kernel.py`) that works here: `namespaces`, as in bubblewrap, or `landlock`, for containers without
namespaces. The weaker kind can read only the interpreter's files. It shares the host's network stack and process table, but its seccomp
filter forbids their use.
"""

import asyncio
import os
import shutil
import signal
import tempfile
from asyncio.subprocess import PIPE
from contextlib import suppress
from functools import partial
from pathlib import Path

from common.errors import Fatal
from env_svc.errors import SandboxUnavailable
from env_svc.sandboxes import kernel
from env_svc.sandboxes.interpreter import (
    SCRATCH_BYTES,
    Rlimits,
    cpu_limit_s,
    end,
    prelude,
    python,
    run_to_end,
    standard_input,
    users,
    visible_paths,
)
from env_svc.sandboxes.sandbox import Bounds, RunResult, Sandbox

SCRATCH_LOOK_S = 0.05
"""Seconds between measurements of a `landlock` run's disk use."""
HIDDEN_PLACES = ("'/tmp", "'/dev/shm", "'/proc")
"""Beginnings of paths, as errors quote them, that programs may expect and that the kind `landlock` does not offer."""


class ConfinedSandbox(Sandbox):
    """Sandbox with at most `runs` concurrent runs; others wait. Without a `kind`, the stronger one that works here."""

    name = "confined"

    def __init__(self, runs: int, kind: kernel.Kind | None = None) -> None:
        self._users: asyncio.Queue[int] = asyncio.Queue()
        for user in users(runs):
            self._users.put_nowait(user)
        self._is_root = os.geteuid() == 0
        self._kinds: tuple[kernel.Kind, ...] = ("namespaces", "landlock") if kind is None else (kind,)
        self._kind: kernel.Kind = self._kinds[0]

    @property
    def meaning(self) -> str:
        if self._kind == "namespaces":
            return "CPython in namespaces of its own, without a network, with the kernel's limits"
        return "CPython under Landlock and seccomp, the weaker kind: no files, sockets or other programs, but no namespaces of its own"

    async def start(self) -> None:
        reasons: list[str] = []
        for kind in self._kinds:
            self._kind = kind
            try:
                return await self._try_out("confined")
            except (SandboxUnavailable, Fatal) as error:
                reasons.append(f"{kind}: {str(error).splitlines()[-1]}")
        raise Fatal(f"the sandbox 'confined' does not work on this machine: {'; '.join(reasons)}")

    async def run(self, source: str, bounds: Bounds) -> RunResult:
        user = await self._users.get()
        scratch = "/tmp" if self._kind == "namespaces" else tempfile.mkdtemp(prefix="marlaas-run-")
        try:
            if scratch != "/tmp" and self._is_root:
                os.chown(scratch, user, user)
            return await self._run(source, bounds, user if self._is_root else 0, scratch)
        finally:
            if scratch != "/tmp":
                await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
            self._users.put_nowait(user)

    async def close(self) -> None:
        """Do nothing: no process or file outlives its run."""

    def unsupported(self, error: str) -> str | None:
        last = error.strip().rpartition("\n")[2]
        if self._kind == "landlock" and (
            f"[Errno {kernel.NOT_OFFERED}]" in last
            or ("[Errno 13]" in last and (last.endswith("Permission denied") or any(place in last for place in HIDDEN_PLACES)))
        ):
            return last
        return None

    async def _run(self, source: str, bounds: Bounds, user: int, scratch: str) -> RunResult:
        visible = visible_paths()
        program = prelude(
            kernel.definitions(self._kind),
            kernel.first_statements(self._kind, visible, SCRATCH_BYTES),
            kernel.last_statements(self._kind, visible, scratch),
        )
        try:
            process = await asyncio.create_subprocess_exec(
                str(python()), "-I", "-S", "-c", program, stdin=PIPE, stdout=PIPE, stderr=PIPE, env={}, cwd="/", start_new_session=True
            )
        except OSError as error:
            raise SandboxUnavailable(f"the interpreter does not start: {error}") from error
        # The kernel's process limit counts all processes of the user, those outside the sandbox too.
        others = 0 if self._is_root or self._kind == "namespaces" else await asyncio.to_thread(_threads_of, os.geteuid())
        limits = Rlimits(bounds.memory_bytes, cpu_limit_s(bounds), processes=bounds.processes + others)
        limit = None if self._kind == "namespaces" else partial(_disk_limit_exceeded, Path(scratch))
        try:
            return await run_to_end(process, standard_input(source, limits, user), bounds, limit)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await end(process)


async def _disk_limit_exceeded(folder: Path) -> None:
    """Return when a run exceeds its disk limit, which no separate file system enforces."""
    while await asyncio.to_thread(_size, folder) <= SCRATCH_BYTES:  # noqa: ASYNC110 (the kernel reports no such event)
        await asyncio.sleep(SCRATCH_LOOK_S)


def _size(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(f"{where}/{name}").st_blocks * 512
    return total


def _threads_of(user: int) -> int:
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if process.stat().st_uid == user:
                count += sum(1 for _ in (process / "task").iterdir())
    return count
