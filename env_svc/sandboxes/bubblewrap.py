"""Sandbox `bubblewrap`: CPython in namespaces of its own, without a daemon. The door to `bwrap`.

The code sees only an interpreter, its libraries and an empty /tmp of this machine: no network, no other process, no
environment variables. It has no capabilities, and the kernel enforces its limits. If the service runs as root, each run has
its own user id, because the kernel does not limit root's processes; otherwise its own user namespace."""

import asyncio
import os
import shutil
from asyncio.subprocess import PIPE
from collections.abc import Iterable, Sequence
from pathlib import Path

from common.errors import Fatal
from env_svc.errors import SandboxUnavailable
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
from env_svc.sandboxes.kernel import DEVICES, LIBRARIES
from env_svc.sandboxes.sandbox import Bounds, RunResult, Sandbox

KEPT_BY_ROOT = ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
"""Arguments if the service is root. The first program keeps two capabilities to change its user and group, and thereby loses them."""


OF_NO_USER = ("--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--uid", "65534", "--gid", "65534")
"""Arguments if the service is not root: no capabilities, in a user namespace."""


def parent_folders(paths: Iterable[str], *, below: str = "/") -> list[str]:
    """Arguments that create the folders above `paths`, which bwrap would make readable only by root. `below`: only folders in this one."""
    folders = sorted({str(above) for path in paths for above in Path(path).parents if str(above) != "/" and str(above).startswith(below)})
    return [argument for folder in folders for argument in ("--perms", "0755", "--dir", folder)]


def visible(read: Sequence[str], write: Sequence[str] = ()) -> list[str]:
    """Arguments that bind libraries and `read` read-only, then `write` and devices."""
    bound = [("--ro-bind-try", one) for one in LIBRARIES] + [("--ro-bind", one) for one in read] + [("--bind", one) for one in write]
    return [argument for option, path in (*bound, *(("--dev-bind", one) for one in DEVICES)) for argument in (option, path, path)]


class BubblewrapSandbox(Sandbox):
    """Sandbox with at most `runs` concurrent runs; others wait."""

    name = "bubblewrap"

    def __init__(self, runs: int) -> None:
        self._users: asyncio.Queue[int] = asyncio.Queue()
        for user in users(runs):
            self._users.put_nowait(user)
        self._is_root = os.geteuid() == 0
        self._bwrap = shutil.which("bwrap")

    @property
    def meaning(self) -> str:
        return "CPython in namespaces of its own (bwrap), without a network, with the kernel's limits"

    async def start(self) -> None:
        if self._bwrap is None:
            raise Fatal("the sandbox 'bubblewrap' needs the program bwrap: install the package bubblewrap")
        try:
            await self._try_out("bubblewrap")
        except SandboxUnavailable as error:
            raise Fatal(f"the sandbox 'bubblewrap' does not work on this machine: {error}") from None

    async def run(self, source: str, bounds: Bounds) -> RunResult:
        user = await self._users.get()
        try:
            return await self._run(source, bounds, user if self._is_root else 0)
        finally:
            self._users.put_nowait(user)

    async def close(self) -> None:
        """Do nothing: no process or file outlives its run."""

    async def _run(self, source: str, bounds: Bounds, user: int) -> RunResult:
        try:
            # Without environment variables, and in a process group of its own, which ends as one.
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
        limits = Rlimits(bounds.memory_bytes, cpu_limit_s(bounds), processes=bounds.processes)
        try:
            return await run_to_end(process, standard_input(source, limits, user), bounds)
        finally:
            await end(process)


def _arguments(*, is_root: bool) -> list[str]:
    seen = visible_paths()
    if is_root:
        apart = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try", *KEPT_BY_ROOT]
    else:
        apart = ["--unshare-all", *OF_NO_USER]
    arguments = [*apart, "--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox"]
    arguments += [*parent_folders((*LIBRARIES, *seen, *DEVICES)), *visible(seen), "--proc", "/proc"]
    for folder in ("/dev/shm", "/tmp"):
        arguments += ["--perms", "1777", "--size", str(SCRATCH_BYTES), "--tmpfs", folder]
    arguments += ["--remount-ro", "/"]
    return [*arguments, "--chdir", "/tmp", str(python()), "-I", "-S", "-c", prelude()]
