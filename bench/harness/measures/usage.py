"""Processor time and memory of processes; 0 for a process that has ended."""

import psutil


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
