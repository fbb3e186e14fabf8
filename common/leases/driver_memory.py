"""Memory of a GPU, as its driver says: it also counts what no lock tells of, as of an engine whose parent has died."""

import subprocess
from dataclasses import dataclass

from common.errors import Fatal

MIB = 2**20
PATIENCE_S = 20.0
COMMAND = ("nvidia-smi", "--query-gpu=memory.total,memory.free", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class DriverMemory:
    total_bytes: int
    free_bytes: int


def driver_memory(device: str) -> DriverMemory:
    """`device`: `cuda:N`, or the UUID of a GPU. Blocks for some hundredths of a second. Raises: Fatal when the driver does not answer."""
    number = device.removeprefix("cuda:")
    try:
        asked = subprocess.run([*COMMAND, "-i", number], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
        total, free = (int(part) for part in asked.stdout.strip().splitlines()[0].split(","))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise Fatal(f"the driver does not say how much memory {device} has ({type(error).__name__}); is nvidia-smi installed?") from None
    return DriverMemory(total * MIB, free * MIB)
