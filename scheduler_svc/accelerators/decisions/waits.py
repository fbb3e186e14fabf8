"""What a pool waits for while none of its samplers, or trainers, is awake on a shared accelerator; some executors never fit. Pure."""

from dataclasses import dataclass
from typing import Literal

from common.pools.memory import GIB

LOWER = {"rollout": "kv_cache_gib (on a GPU gpu_memory_share)", "trainer": "train_tokens"}
"""Setting of a pool that its executors' memory depends on most."""


@dataclass(frozen=True)
class Misfit:
    """An executor that does not fit on its accelerator even alone."""

    accelerator: str
    service: Literal["rollout", "trainer"]
    pool: str
    device_bytes: int
    memory_gib: float
    """Budget of the accelerator."""

    @property
    def needed_gib(self) -> float:
        return self.device_bytes / GIB

    @property
    def sentence(self) -> str:
        executor, lower = f"{self.service}-{self.pool}", f"{LOWER[self.service]} of [{self.pool}]"
        return (
            f"{executor} needs {self.device_bytes} bytes ({self.needed_gib:.2f} GiB) on the device, and accelerator '{self.accelerator}' "
            f"has {self.memory_gib:.2f} GiB for all its executors, so it never wakes: raise memory_gib of "
            f"[accelerator.{self.accelerator}], or lower {lower}"
        )


def misfit(
    accelerator: str, service: Literal["rollout", "trainer"], pool: str, device_bytes: int, memory_gib: float | None
) -> Misfit | None:
    """None where it fits, and where the pools file gives no budget: the processes on a GPU know what there is."""
    if memory_gib is None or device_bytes <= int(memory_gib * GIB):
        return None
    return Misfit(accelerator, service, pool, device_bytes, memory_gib)


NEVER_S = float("inf")


@dataclass(frozen=True)
class AcceleratorWait:
    """That all samplers, or all trainers, of a pool wait for shared accelerators; of the one that is expected to wake first."""

    accelerator: str
    wake_s: float
    """Seconds that waking it takes."""
    usual_s: float | None
    """Median seconds between its slices; None before the second."""
    waited_s: float
    is_held: bool = False
    """Whether an operator has parked it."""
    faults: int = 0
    """Attempts to wake it that have failed since it last woke."""
    misfit: Misfit | None = None
    """That it needs more than its accelerator has."""
    has_work: bool = True
    """Whether anything waits for it; else it is parked because its pool has nothing for it."""

    @property
    def left_s(self) -> float:
        return NEVER_S if self.misfit is not None else max(self.wake_s, (self.usual_s or 0.0) - self.waited_s)
