"""Settings of the trainer: `MARLAAS_TRAINER_…`."""

from typing import ClassVar, Literal

from pydantic import Field

from common.formats.cores import Cores
from common.runtime.settings import Settings


class TrainerSettings(Settings):
    service: ClassVar[str] = "TRAINER"

    pool: str
    """Pool of the pools file that this replica trains for."""
    accelerator: str = ""
    """Shared accelerator of the pools file on which it takes turns; empty: it has its own."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    gpu_memory_share: float | None = Field(default=None, gt=0, le=1)
    """Maximum share of its GPU's memory. None: 0.95 minus the pool's `gpu_memory_share`, for a GPU that it shares with the pool's engine.
    On a shared accelerator the accelerator's memory counts instead."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of one step. More threads than free cores make steps slower."""
    cores: Cores = ()
    """Cores to which the process is pinned, as `0,2-3`; empty: no pinning. On a shared CPU only the computing thread is pinned."""
    resident_tasks: int = Field(default=32, ge=1)
    """Maximum tasks whose adapter and optimizer state stay in memory; others are read from their checkpoints."""
    resident_gib: float = Field(default=8.0, gt=0)
    """Device memory for those states; beyond it the least recently trained task is evicted, too. On a GPU and on a shared accelerator at
    most the memory that the largest step leaves."""
    host_gib: float = Field(default=8.0, ge=0)
    """Host memory for states that do not fit on a GPU; on a CPU they are read from their checkpoints."""
    shared_steps: int = Field(default=1, ge=1)
    """Maximum queued steps of different tasks that are computed together. 1: each alone, and on a CPU bit for bit independent of
    other tasks; more: equal up to rounding, and faster if one step cannot fill the device."""
