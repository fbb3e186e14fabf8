"""Wait of a pool without an awake sampler, or trainer, on a shared accelerator; executors that never fit. Pure."""

from dataclasses import dataclass
from typing import Literal

from common.pools.memory import GIB

LOWER = {"rollout": "kv_cache_gib (on a GPU gpu_memory_share)", "trainer": "train_tokens"}
"""Pool setting to lower if an executor does not fit, by service: the one that affects memory most."""


@dataclass(frozen=True)
class Misfit:
    """An executor that does not fit on its accelerator even alone."""

    accelerator: str
    service: Literal["rollout", "trainer"]
    pool: str
    device_bytes: int
    memory_gib: float
    """Memory budget of the accelerator in GiB."""

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
    """The executor's misfit; None if it fits, or the pools file gives no budget: executors on a GPU measure the GPU's memory themselves."""
    if memory_gib is None or device_bytes <= int(memory_gib * GIB):
        return None
    return Misfit(accelerator, service, pool, device_bytes, memory_gib)


NEVER_S = float("inf")


@dataclass(frozen=True)
class AcceleratorWait:
    """Wait of a pool's samplers, or of its trainers, for a shared accelerator: that of the executor expected to wake first."""

    accelerator: str
    wake_s: float
    """Expected seconds to wake the executor."""
    usual_s: float | None
    """Median seconds between its slices; None before its second slice."""
    waited_s: float
    is_held: bool = False
    """Whether an operator has parked it."""
    faults: int = 0
    """Failed attempts to wake it since it last woke."""
    misfit: Misfit | None = None
    """Set if the executor needs more memory than its accelerator has."""
    has_work: bool = True
    """Whether work waits for it; if not, it is parked for lack of work."""

    @property
    def left_s(self) -> float:
        return NEVER_S if self.misfit is not None else max(self.wake_s, (self.usual_s or 0.0) - self.waited_s)
