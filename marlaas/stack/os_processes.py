"""Processes of this machine: which one it is, whether it still runs, and how to leave none behind.

A process id says nothing once the process is gone: another may carry it, and after a reboot surely one does. So a
process is known by its id together with the moment it started, counted from a boot that has an id of its own.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

PROC = Path("/proc")
PR_SET_PDEATHSIG = 1
START_TIME_FIELD = 19
"""Of /proc/<pid>/stat after the name in brackets: ticks from boot to start (field 22 in proc(5))."""


class Identity(BaseModel):
    """One process, and no other that may carry its id later."""

    model_config = ConfigDict(frozen=True)

    pid: int
    started: str
    """<boot id>:<clock ticks since that boot>."""


def identify(pid: int) -> Identity | None:
    """Who runs under `pid`; None when nobody does, or only a corpse that its parent has not buried."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else Identity(pid=pid, started=f"{boot}:{fields[START_TIME_FIELD]}")


def is_running(process: Identity) -> bool:
    return identify(process.pid) == process


def marked_with(name: str, value: str) -> list[Identity]:
    """Every process that was started with `name=value` in its environment, and that this user may look at."""
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
    """Ask every process to end, kill those that have not after `grace_s`; returns those that were running."""
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
    """Nothing happens when the process is gone."""
    if is_running(process):
        with suppress(ProcessLookupError):
            os.kill(process.pid, signum)


def end_group(leader_pid: int) -> None:
    """Kill what a process that led its own group has left behind, for example an engine's workers."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader_pid, signal.SIGKILL)


def ends_with_parent(signum: int) -> Callable[[], None]:
    """For `preexec_fn`: the child gets `signum` when its parent dies, however that happens (Linux)."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl  # looked up here: little is safe between fork and exec

    def arrange() -> None:
        prctl(PR_SET_PDEATHSIG, signum)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return arrange
