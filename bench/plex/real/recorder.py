"""What happened on an accelerator, seen from outside: locks from the kernel, processor time and memory by process.

It belongs to no service and asks none. Every 20 ms it reads which process holds the accelerator's locks (/proc/locks) and how much
processor time each executor has used on the accelerator's cores; every half second, the private memory of its processes. Executors may be
killed meanwhile: their processor time goes on from that of the process before.

A thread counts with all it uses where its affinity permits any of the accelerator's cores, whether or not it ran there. What a service does
on other cores only is not on the accelerator: it fetches and hashes adapters, tokenizes, stores versions and starts beside the holder.
Without cores, as for a GPU, all threads count. Memory counts from when a process is ready, or holds a lock.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.harness.measures import usage
from marlaas.stack.state_files import Stack

COMPUTE = "compute.lock"
EVERY_S = 0.02
FAMILIES_EVERY_S = 1.0
MEMORY_EVERY_S = 0.5
WINDOW_S = 0.2
COMPUTING = 0.3
"""Share of a core over a window from which on an executor counts as computing: reports and heartbeats take a few per cent."""


@dataclass(frozen=True)
class Executor:
    """Service process of an executor at one moment."""

    process: psutil.Process
    is_ready: bool = True


@dataclass(frozen=True)
class Seen:
    """One look."""

    at_s: float
    holders: frozenset[str]
    """Executors whose processes hold the compute lock."""
    cpu_s: Mapping[str, float]
    """Processor seconds so far by executor, on the accelerator's cores."""


@dataclass(frozen=True)
class Window:
    """`WINDOW_S` without a change of holder."""

    at_s: float
    holder: str | None
    seconds: dict[str, float]
    """Processor time of each executor that computed."""


@dataclass
class Recording:
    looks: list[Seen] = field(default_factory=list[Seen])
    memory: list[tuple[float, dict[str, int]]] = field(default_factory=list[tuple[float, dict[str, int]]])
    """Private bytes by executor."""

    def held_by_several(self) -> int:
        """Looks at which the processes of more than one executor held the compute lock."""
        return sum(len(one.holders) > 1 for one in self.looks)

    def held_share(self, began_s: float, ended_s: float) -> float:
        """Share of the looks between two times at which an executor held the compute lock."""
        inside = [one for one in self.looks if began_s <= one.at_s <= ended_s]
        return sum(bool(one.holders) for one in inside) / len(inside) if inside else 0.0

    def computing_together(self) -> list[Window]:
        """Windows in which more than one executor computed. One that parks and one that wakes share no window."""
        return [one for one in self._windows() if len(one.seconds) > 1]

    def busy_s(self, began_s: float, ended_s: float) -> dict[str, float]:
        """Processor seconds of each executor between two times, on the accelerator's cores."""
        inside = [one for one in self.looks if began_s <= one.at_s <= ended_s]
        if len(inside) < 2:
            return {}
        first, last = inside[0].cpu_s, inside[-1].cpu_s
        return {name: round(last[name] - first.get(name, 0.0), 3) for name in last}

    def peak_private_bytes(self) -> int:
        """Largest sum over all executors."""
        return max((sum(found.values()) for _, found in self.memory), default=0)

    def figures(self) -> dict[str, Any]:
        """What was seen in all looks."""
        together = self.computing_together()
        return {
            "looks": len(self.looks),
            "held_by_several": self.held_by_several(),
            "computing_together": len(together),
            "together": [asdict(one) for one in together],
            "peak_private_mib": round(self.peak_private_bytes() / 2**20),
        }

    def _windows(self) -> list[Window]:
        found: list[Window] = []
        begin = 0
        for index, one in enumerate(self.looks):
            if one.holders != self.looks[begin].holders:
                begin = min(index + 1, len(self.looks) - 1)  # what was used just before the change is seen at the look after it
            elif index >= begin and (lasted_s := one.at_s - self.looks[begin].at_s) >= WINDOW_S:
                before = self.looks[begin].cpu_s
                spent = {name: round(used - before.get(name, used), 3) for name, used in one.cpu_s.items()}
                computed = {name: seconds for name, seconds in spent.items() if seconds > COMPUTING * lasted_s}
                found.append(Window(self.looks[begin].at_s, min(one.holders, default=None), computed))
                begin = index
        return found


class Recorder:
    """Looks until it is stopped."""

    def __init__(self, executors: Callable[[], Mapping[str, Executor]], folder: Path | None, cores: Collection[int] = ()) -> None:
        """`executors`: those that run now, by name. `folder`: of the accelerator's locks; None where there are none. `cores`: of the
        accelerator; none: it has none of its own."""
        self._executors = executors
        self._folder = folder
        self._cores = frozenset(cores)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._cpu_s: dict[psutil.Process, dict[int, float]] = {}
        """By thread, at the last look."""
        self._spent_s = defaultdict[str, float](float)
        self.recording = Recording()

    def __enter__(self) -> Recording:
        self._thread.start()
        return self.recording

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        present, families, looked_s, weighed_s = dict[str, Executor](), dict[str, list[psutil.Process]](), 0.0, 0.0
        while not self._ended.wait(EVERY_S):
            now_s = time.time()
            locked = self._locked()
            known = {one.pid for family in families.values() for one in family}
            if now_s - looked_s > FAMILIES_EVERY_S or any(pids - known for pids in locked.values()):
                present = dict(self._executors())
                families, looked_s = {name: _family(one.process) for name, one in present.items()}, now_s
            holders = {name: {each for each, pids in locked.items() if pids & {one.pid for one in of}} for name, of in families.items()}
            self._spend(families)
            computing = frozenset(name for name, held in holders.items() if COMPUTE in held)
            self.recording.looks.append(Seen(now_s, computing, {name: self._spent_s[name] for name in families}))
            if now_s - weighed_s > MEMORY_EVERY_S:
                weighed_s = now_s
                counted = {name for name, one in present.items() if one.is_ready or holders[name]}
                self.recording.memory.append((now_s, {name: sum(map(_private_bytes, families[name])) for name in counted}))

    def _spend(self, families: Mapping[str, list[psutil.Process]]) -> None:
        """Add what the processes have used since the last look. A child that is new has used all it has since."""
        before, self._cpu_s = self._cpu_s, {}
        for name, family in families.items():
            for index, process in enumerate(family):
                used = self._cpu_s[process] = self._used_s(process)
                last = before.get(process, dict.fromkeys(used, 0.0) if index else used)
                self._spent_s[name] += sum(max(0.0, now_s - last.get(thread, now_s)) for thread, now_s in used.items())

    def _used_s(self, process: psutil.Process) -> dict[int, float]:
        return usage.cpu_s_on(process, self._cores) if self._cores else {usage.WHOLE: usage.cpu_s(process)}

    def _locked(self) -> dict[str, set[int]]:
        """Processes that hold each lock of the accelerator, by the file's name."""
        if self._folder is None:
            return {}
        by_inode = {str(path.stat().st_ino): path.name for path in self._folder.glob("*")}
        found: dict[str, set[int]] = {name: set() for name in by_inode.values()}
        for line in Path("/proc/locks").read_text().splitlines():
            parts = line.split()
            if "->" not in parts and parts[1] == "FLOCK" and parts[3] == "WRITE" and (name := by_inode.get(parts[5].rpartition(":")[2])):
                found[name].add(int(parts[4]))
        return found


def executors(stack: Stack) -> dict[str, Executor]:
    """Processes of samplers and trainers that run in the stack."""
    found: dict[str, Executor] = {}
    for one in stack.components:
        if one.process is not None and one.name.partition("-")[0] in ("rollout", "trainer"):
            with suppress(psutil.NoSuchProcess):
                found[one.name] = Executor(psutil.Process(one.process.pid), is_ready=one.condition == "ready")
    return found


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return usage.family(process)
    except psutil.NoSuchProcess:
        return []


def _private_bytes(process: psutil.Process) -> int:
    """0 once it has ended."""
    try:
        return usage.private_bytes(process.pid)
    except OSError:
        return 0
