"""Control groups of hosted processes: memory, processes and computing time of each sandbox, counted over all that it starts.

If the service may make no groups on this machine, only single processes are limited (`confinement.py`). /sys/fs/cgroup has
one tree (version 2), or one for each controller (version 1). Source: the kernel's cgroup-v1 and cgroup-v2 documents.
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MOUNTED = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
FAMILY = "marlaas-hosts"
"""Name of the folder that contains the groups of all sandboxes, below the service's own group."""
CONTROLLERS = ("cpu", "memory", "pids")
MIB = 2**20
PERIOD_US = 10_000
"""Microseconds of a period. A group that has used its computing time for the period waits for the next one. Periods are short, so that a
group whose processes fill all cores leaves them to others several times in 100 ms."""
SHARES_OF_A_CORE = 1024
"""Weight, in version 1, of a process outside the groups. All sandboxes together weigh as much as one such process for each core."""
REMOVAL_S = 2.0
"""Maximum seconds for the kernel to empty a group whose processes were killed."""


@dataclass(frozen=True)
class GroupLimits:
    """Limits of one sandbox, all its processes together."""

    memory_mib: int
    max_processes: int
    cores: float


class Cgroups:
    """Makes groups below `folders`: one for each controller in version 1, a single one in version 2."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        """`folders`: controller → folder; all the same in version 2."""
        self._folders = folders
        self._is_one_tree = len(set(folders.values())) == 1

    def make(self, name: str, limits: GroupLimits) -> list[Path]:
        """Create a group, or set the limits of an existing one. Returns the files for its process ids. Raises: OSError.

        `name` begins with this process's id and a hyphen, by which others know that it runs.
        """
        for folder in set(self._folders.values()):
            (folder / name).mkdir(exist_ok=True)
        cpu, memory, pids = (self._folders[one] / name for one in CONTROLLERS)
        bytes_, computing_us = str(limits.memory_mib * MIB), str(max(1_000, int(limits.cores * PERIOD_US)))
        if self._is_one_tree:
            (cpu / "cpu.max").write_text(f"{computing_us} {PERIOD_US}")
            (memory / "memory.max").write_text(bytes_)
            swap = memory / "memory.swap.max"
            if swap.exists():
                swap.write_text("0")
        else:
            (cpu / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (cpu / "cpu.cfs_quota_us").write_text(computing_us)
            (memory / "memory.limit_in_bytes").write_text(bytes_)
            with suppress(OSError):  # a kernel without accounting of swap has no such file
                (memory / "memory.memsw.limit_in_bytes").write_text(bytes_)
        (pids / "pids.max").write_text(str(limits.max_processes))
        return [folder / name / "cgroup.procs" for folder in sorted(set(self._folders.values()))]

    def remove(self, name: str) -> None:
        """Remove a group once its processes have ended; blocks for at most REMOVAL_S. A group that still has some is left to `sweep`."""
        ends_at = time.monotonic() + REMOVAL_S
        for folder in set(self._folders.values()):
            while (folder / name).exists():
                try:
                    (folder / name).rmdir()
                except OSError:
                    if time.monotonic() > ends_at:
                        break
                    time.sleep(0.02)

    def sweep(self) -> None:
        """Remove groups that killed replicas left behind. One of a running replica stays: its first process may be about to enter it."""
        for folder in set(self._folders.values()):
            for group in folder.iterdir():
                if group.is_dir() and not Path("/proc", group.name.partition("-")[0]).exists():
                    with suppress(OSError):
                        group.rmdir()


def find_cgroups(delegated: Path | None, mounted: Path = MOUNTED, own: Path = OWN) -> Cgroups | None:
    """Groups that this service may make; None if it may make none.

    `delegated`: a folder of version 2 whose controllers the operator has enabled for its children; None: the service's own group, which
    in version 2 must be the root of what the service sees.
    """
    try:
        if delegated is not None or (mounted / "cgroup.controllers").exists():
            base = {name: delegated or mounted / _own_group(own, "") for name in CONTROLLERS}
            with suppress(OSError):  # enabled already, or the groups below have no limits and the next line raises
                (base["cpu"] / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in CONTROLLERS))
        else:
            base = {name: mounted / name / _own_group(own, name) for name in CONTROLLERS}
        folders = {name: folder / FAMILY for name, folder in base.items()}
        for folder in set(folders.values()):
            folder.mkdir(exist_ok=True)
        if len(set(folders.values())) == 1:
            (folders["cpu"] / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in CONTROLLERS))
        else:
            (folders["cpu"] / "cpu.shares").write_text(str(SHARES_OF_A_CORE * (os.cpu_count() or 1)))
        found = Cgroups(folders)
        found.sweep()
        trial = f"{os.getpid()}-trial"
        found.make(trial, GroupLimits(64, 16, 1.0))
        found.remove(trial)
    except OSError:
        return None
    return found


def _own_group(own: Path, controller: str) -> str:
    """The group of this process, relative to the mounted tree. Lines: `4:memory:/path`, and `0::/path` in version 2."""
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.lstrip("/")
    raise FileNotFoundError(f"no cgroup of the controller '{controller}'")
