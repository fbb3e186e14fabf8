"""Processor time and memory of processes; 0 for a process that has ended, where nothing else is said."""

import os
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

import psutil

PRIVATE = ("Private_Clean:", "Private_Dirty:")
WHOLE = 0
"""Stands for all threads of a process."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
USER, SYSTEM = 11, 12
"""Fields of `stat` behind the name: ticks of the clock."""


def family(process: psutil.Process) -> list[psutil.Process]:
    """The process and its descendants."""
    return [process, *process.children(recursive=True)]


def cpu_s(process: psutil.Process) -> float:
    """Processor seconds so far."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system


def cpu_s_on(process: psutil.Process, cores: Set[int]) -> dict[int, float]:
    """Processor seconds so far of the threads that may run on any of the cores, by thread; under `WHOLE` where all may."""
    try:
        with os.scandir(f"/proc/{process.pid}/task") as entries:
            threads = [int(entry.name) for entry in entries]
    except OSError:
        return {}
    on_cores = [thread for thread in threads if _may_run_on(thread, cores)]
    if len(on_cores) == len(threads):
        return {WHOLE: cpu_s(process)}
    found: dict[int, float] = {}
    for thread in on_cores:
        with suppress(OSError):
            fields = Path(f"/proc/{process.pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
            found[thread] = (int(fields[USER]) + int(fields[SYSTEM])) * TICK_S
    return found


def _may_run_on(thread: int, cores: Set[int]) -> bool:
    try:
        return not cores.isdisjoint(os.sched_getaffinity(thread))
    except OSError:
        return False


def pss_bytes(process: psutil.Process) -> int:
    """Proportional set size: pages that processes share are counted once."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.NoSuchProcess:
        return 0


def private_bytes(pid: int) -> int:
    """Memory that no other process shares, as the kernel counts it at once: with libraries, unlike `memory.own_bytes`.

    Raises: OSError for a process that has ended: it has freed nothing.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(PRIVATE))
