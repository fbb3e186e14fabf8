"""What happened on an accelerator, seen from outside: locks from the kernel, processor time and memory by process.

It belongs to no service and asks none. Every 20 ms it reads which process holds the accelerator's locks (/proc/locks) and how much
processor time each executor's processes have used; every half second, their private memory.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.harness.measures import usage

EVERY_S = 0.02
MEMORY_EVERY_S = 0.5
WINDOW_S = 0.2
COMPUTING = 0.3
"""Share of a core over a window from which on an executor counts as computing: reports and heartbeats take a few per cent."""


@dataclass(frozen=True)
class Seen:
    """One look."""

    at_s: float
    holders: frozenset[str]
    """Executors whose processes hold the compute lock."""
    cpu_s: Mapping[str, float]
    """Processor seconds so far by executor."""


@dataclass
class Recording:
    looks: list[Seen] = field(default_factory=list[Seen])
    memory: list[tuple[float, dict[str, int]]] = field(default_factory=list[tuple[float, dict[str, int]]])
    """Private bytes by executor."""

    def held_by_several(self) -> int:
        """Looks at which the processes of more than one executor held the compute lock."""
        return sum(len(one.holders) > 1 for one in self.looks)

    def held_share(self, began_s: float, ended_s: float) -> float:
        """Share of the looks between two times at which somebody held the compute lock."""
        inside = [one for one in self.looks if began_s <= one.at_s <= ended_s]
        return sum(bool(one.holders) for one in inside) / len(inside) if inside else 0.0

    def computing_together(self) -> int:
        """Windows in which more than one executor computed."""
        return sum(len(names) > 1 for names in self._computing())

    def busy_s(self, began_s: float, ended_s: float) -> dict[str, float]:
        """Processor seconds of each executor between two times."""
        inside = [one for one in self.looks if began_s <= one.at_s <= ended_s]
        if len(inside) < 2:
            return {}
        first, last = inside[0].cpu_s, inside[-1].cpu_s
        return {name: round(last[name] - first.get(name, 0.0), 3) for name in last}

    def peak_private_bytes(self) -> int:
        """Largest sum over all executors."""
        return max((sum(found.values()) for _, found in self.memory), default=0)

    def _computing(self) -> list[set[str]]:
        found: list[set[str]] = []
        begin = 0
        for index, one in enumerate(self.looks):
            if one.at_s - self.looks[begin].at_s >= WINDOW_S:
                before, seconds = self.looks[begin], one.at_s - self.looks[begin].at_s
                found.append({name for name, spent in one.cpu_s.items() if spent - before.cpu_s.get(name, spent) > COMPUTING * seconds})
                begin = index
        return found


class Recorder:
    """Looks until it is stopped."""

    def __init__(self, executors: Mapping[str, psutil.Process], folder: Path | None) -> None:
        """`executors`: their service processes by name. `folder`: of the accelerator's locks; None where there are none."""
        self._executors = executors
        self._lock = folder / "compute.lock" if folder is not None else None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self.recording = Recording()

    def __enter__(self) -> Recording:
        self._thread.start()
        return self.recording

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        families, looked_s, weighed_s = self._families(), 0.0, 0.0
        while not self._ended.wait(EVERY_S):
            now_s = time.time()
            if now_s - looked_s > 1.0:
                families, looked_s = self._families(), now_s
            cpu = {name: sum(usage.cpu_s(one) for one in family) for name, family in families.items()}
            self.recording.looks.append(Seen(now_s, self._holders(families), cpu))
            if now_s - weighed_s > MEMORY_EVERY_S:
                weighed_s = now_s
                self.recording.memory.append((now_s, {name: sum(map(private_bytes, family)) for name, family in families.items()}))

    def _families(self) -> dict[str, list[psutil.Process]]:
        found: dict[str, list[psutil.Process]] = {}
        for name, process in self._executors.items():
            try:
                found[name] = usage.family(process)
            except psutil.NoSuchProcess:
                found[name] = []
        return found

    def _holders(self, families: Mapping[str, list[psutil.Process]]) -> frozenset[str]:
        if self._lock is None or not self._lock.exists():
            return frozenset()
        inode = str(self._lock.stat().st_ino)
        pids = set[int]()
        for line in Path("/proc/locks").read_text().splitlines():
            parts = line.split()
            if "->" not in parts and parts[1] == "FLOCK" and parts[5].rpartition(":")[2] == inode:
                pids.add(int(parts[4]))
        return frozenset(name for name, family in families.items() if pids & {one.pid for one in family})


def private_bytes(process: psutil.Process) -> int:
    """Private memory of one process, from the kernel; 0 once it has ended."""
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except (OSError, ProcessLookupError):
        return 0
    kib = [int(line.split()[1]) for line in text.splitlines() if line.startswith(("Private_Clean", "Private_Dirty"))]
    return 1024 * sum(kib)
