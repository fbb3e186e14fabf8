"""Processor time and memory of processes; 0 for a process that has ended, where nothing else is said."""

from pathlib import Path

import psutil

PRIVATE = ("Private_Clean:", "Private_Dirty:")


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
