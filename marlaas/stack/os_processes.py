"""Processes of this machine: identity, liveness and termination.

A process id may be reused after its process has ended, and certainly is after a reboot. So a process is identified by its id,
its start time and the id of the boot.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

PROC = Path("/proc")
PR_SET_PDEATHSIG = 1
START_TIME_FIELD = 19
"""Index in /proc/<pid>/stat after the name in brackets: ticks from boot to start (field 22 in proc(5))."""


class Identity(BaseModel):
    """Identity of one process; distinct from later processes with the same id."""

    model_config = ConfigDict(frozen=True)

    pid: int
    started: str
    """<boot id>:<clock ticks since that boot>."""


def identify(pid: int) -> Identity | None:
    """Identity of the process with id `pid`; None if there is none, or only a zombie."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else Identity(pid=pid, started=f"{boot}:{fields[START_TIME_FIELD]}")


def is_running(process: Identity) -> bool:
    return identify(process.pid) == process


def marked_with(name: str, value: str) -> list[Identity]:
    """Every process with `name=value` in its environment that this user may inspect."""
    mark = f"{name}={value}".encode()
    found: list[Identity] = []
    for folder in PROC.iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0") and (process := identify(int(folder.name))):
                found.append(process)
    return found


def end(processes: Iterable[Identity], grace_s: float) -> list[Identity]:
    """Terminate every process, kill those that remain after `grace_s`; returns those that were running."""
    running = [process for process in processes if is_running(process)]
    for process in running:
        send(process, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while any(is_running(process) for process in running) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in running:
        send(process, signal.SIGKILL)
    return running


def send(process: Identity, signum: int) -> None:
    """Signal a process; no effect if it has ended."""
    if is_running(process):
        with suppress(ProcessLookupError):
            os.kill(process.pid, signum)


def end_group(leader_pid: int) -> None:
    """Kill the process group of a leader that has ended, for example an engine's workers."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader_pid, signal.SIGKILL)


def ends_with_parent(signum: int, leaves: Collection[int] = (), parent: int | None = None) -> Callable[[], None]:
    """`preexec_fn` that makes the child get `signum` when its parent dies (Linux), and keeps it off the cores `leaves`, if there are
    others.

    `parent`: its process id; None: this process.
    """
    parent, cores = parent or os.getpid(), os.sched_getaffinity(0).difference(leaves)
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork: few calls are safe between fork and exec

    def arrange() -> None:
        prctl(PR_SET_PDEATHSIG, signum)
        if os.getppid() != parent:  # the parent died before prctl
            os._exit(1)
        if leaves and cores:
            os.sched_setaffinity(0, cores)

    return arrange
