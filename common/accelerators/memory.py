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


@dataclass(frozen=True)
class DriverMemory:
    total_bytes: int
    free_bytes: int


def driver_memory(device: str) -> DriverMemory:
    """Memory of a GPU: the first in CUDA_VISIBLE_DEVICES, on which this process computes, else `device`: `cuda:N`, or its UUID.

    Raises: Fatal if the driver does not answer.
    """
    number = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip() or device.removeprefix("cuda:")
    try:
        ((total, free),) = ask_driver("--query-gpu=memory.total,memory.free", "-i", number)
        return DriverMemory(int(total) * MIB, int(free) * MIB)
    except (Fatal, ValueError) as error:
        raise Fatal(f"the driver does not say how much memory {device} has: {error}") from None


def ask_driver(*query: str) -> list[list[str]]:
    """Cells of nvidia-smi's answer, by line. Blocks for some hundredths of a second. Raises: Fatal with its complaint."""
    command = ["nvidia-smi", *query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except FileNotFoundError:
        raise Fatal("there is no nvidia-smi here (a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility)") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Fatal(f"nvidia-smi does not answer ({type(error).__name__})") from None
    if done.returncode:
        raise Fatal(f"nvidia-smi fails: {' '.join((done.stdout or done.stderr).split()) or done.returncode}")
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]


def private_bytes() -> int | None:
    """Bytes that this process and its descendants share with no other process; None if Linux does not report them. Takes milliseconds per
    GiB."""
    found = [size for pid in with_descendants(os.getpid()) if (size := _private(pid)) is not None]
    return sum(found) if found else None


def with_descendants(pid: int) -> Iterator[int]:
    """Yield `pid`, and its descendants' process ids."""
    yield pid
    for listed in (PROC / str(pid) / "task").glob("*/children"):
        with suppress(OSError):
            for child in listed.read_text().split():
                yield from with_descendants(int(child))


def _private(pid: int) -> int | None:
    """Private bytes of one process; None if it has ended, or is another user's."""
    with suppress(OSError, ValueError):
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(PRIVATE))
    return None
