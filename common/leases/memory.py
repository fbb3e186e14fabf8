"""Memory in use: private memory of this process and its descendants according to Linux, and a GPU's according to its driver.

The driver also counts memory that no lock covers, such as that of an engine whose parent has died.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from common.errors import Fatal

PROC = Path("/proc")
PRIVATE = ("Private_Clean:", "Private_Dirty:")
MIB = 2**20
PATIENCE_S = 20.0
COMMAND = ("nvidia-smi", "--query-gpu=memory.total,memory.free", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class DriverMemory:
    total_bytes: int
    free_bytes: int


def driver_memory(device: str) -> DriverMemory:
    """Memory of a GPU. `device`: `cuda:N`, or its UUID. Blocks for some hundredths of a second. Raises: Fatal if the driver does not
    answer."""
    number = device.removeprefix("cuda:")
    try:
        asked = subprocess.run([*COMMAND, "-i", number], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
        total, free = (int(part) for part in asked.stdout.strip().splitlines()[0].split(","))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise Fatal(f"the driver does not say how much memory {device} has ({type(error).__name__}); is nvidia-smi installed?") from None
    return DriverMemory(total * MIB, free * MIB)


def private_bytes() -> int | None:
    """Bytes that this process and its descendants share with no other process; None if Linux does not report them. Takes milliseconds per
    GiB."""
    found = [size for pid in _with_descendants(os.getpid()) if (size := _private(pid)) is not None]
    return sum(found) if found else None


def _with_descendants(pid: int) -> Iterator[int]:
    yield pid
    for listed in (PROC / str(pid) / "task").glob("*/children"):
        with suppress(OSError):
            for child in listed.read_text().split():
                yield from _with_descendants(int(child))


def _private(pid: int) -> int | None:
    """Private bytes of one process; None if it has ended, or is another user's."""
    with suppress(OSError, ValueError):
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(PRIVATE))
    return None
