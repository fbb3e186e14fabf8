"""A GPU by its driver: name, memory, and utilisation while a program runs, from `nvidia-smi`. Of several GPUs it is the first."""

import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from bench.harness.part import Phase
from common.accelerators.memory import MIB, driver_memory
from marlaas.stack.devices import find_gpus

PERIOD_MS = 500
TIME = "%Y/%m/%d %H:%M:%S.%f"


class Sample(NamedTuple):
    at_s: float
    """Unix seconds."""
    busy_percent: float
    """Share of the driver's last period in which a kernel ran."""
    used_mib: float


def described() -> dict[str, str] | None:
    """Name and memory of the GPU, and version of its driver; None without a GPU."""
    if not (gpus := find_gpus()[0]):
        return None
    return {"gpu": f"{gpus[0].name}, {gpus[0].memory_bytes // MIB} MiB", "driver": gpus[0].driver_version}


def used_mib() -> float:
    """Memory of the GPU in use by all processes; 0 without a GPU."""
    if not (gpus := find_gpus()[0]):
        return 0.0
    found = driver_memory(gpus[0].number)
    return (found.total_bytes - found.free_bytes) / MIB


@contextmanager
def sampled(file: Path) -> Generator[None]:
    """Samples of the GPU until the end of the block, in a file that is empty without one."""
    if not (gpus := find_gpus()[0]):
        file.write_text("")
        yield
        return
    command = ["nvidia-smi", "--query-gpu=timestamp,utilization.gpu,memory.used", "--format=csv,noheader,nounits", "-i", gpus[0].number]
    with file.open("w") as written:
        asking = subprocess.Popen([*command, f"--loop-ms={PERIOD_MS}"], stdout=written)
        try:
            yield
        finally:
            asking.terminate()
            asking.wait()


def figures(file: Path, phases: Sequence[Phase]) -> dict[str, object] | None:
    """Maximum memory, and mean utilisation as a share, in each phase that was sampled; None without samples."""
    rows = [line.split(", ") for line in file.read_text().splitlines()]
    # A GPU that is divided has no utilisation: "[N/A]".
    samples = [
        Sample(datetime.strptime(row[0], TIME).timestamp(), float(row[1]), float(row[2])) for row in rows if row[1:2] and row[1].isdigit()
    ]
    found: dict[str, list[Sample]] = {}
    for name, began_s, ended_s in phases:
        found.setdefault(name, []).extend(one for one in samples if began_s <= one.at_s <= ended_s)
    return (
        {
            "peak_mib": {name: max(one.used_mib for one in each) for name, each in found.items() if each},
            "utilisation": {name: round(mean(one.busy_percent for one in each) / 100, 3) for name, each in found.items() if each},
        }
        if samples
        else None
    )
