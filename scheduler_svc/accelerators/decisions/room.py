"""Executors that need more than their accelerator has for all of them: they can never wake, and an operator must change a setting. Pure."""

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
