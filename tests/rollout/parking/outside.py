"""What the kernel says about an engine's process."""

import os
from pathlib import Path

from rollout_svc.engine.engine import Engine

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def children() -> set[int]:
    """Processes that this one has started and that live."""
    own = str(os.getpid())
    found: set[int] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[1] == own and fields[0] != "Z":
            found.add(int(stat.parent.name))
    return found


def failure_files() -> int:
    """Files for the reason of an engine's failure that this process has open."""
    return sum("marlaas-engine-failure" in str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink())


def engine_pid(engine: Engine) -> int:
    """The process in which vLLM computes."""
    (process,) = engine.process.llm.engine_core.resources.engine_manager.processes
    return process.pid


def is_stopped(pid: int) -> bool:
    """Whether each of its threads is."""
    return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in Path(f"/proc/{pid}/task").glob("*/stat"))


def processor_s(pid: int) -> float:
    """Processor time that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND
