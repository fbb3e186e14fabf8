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
    """Shared accelerator of the pools file that it takes turns on; empty: it has one of its own."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = Field(default=1, ge=1)
    """CPU threads of one step. More than there are free cores make steps slower."""
    cores: Cores = ()
    """Cores that the process is pinned to, as `0,2-3`; empty: no pinning. On a shared CPU only what computes."""
    resident_tasks: int = Field(default=32, ge=1)
    """Maximum tasks whose adapter and optimizer state stay in memory; others are read from their checkpoints."""
    resident_gib: float = Field(default=8.0, gt=0)
    """Device memory for those states; beyond it, too, the least recently trained task is evicted. On a shared accelerator no more than
    its memory leaves beside the largest step."""
    host_gib: float = Field(default=8.0, ge=0)
    """Host memory for states that a GPU has no more room for; on a CPU they are read from their checkpoints."""
    shared_steps: int = Field(default=1, ge=1)
    """Maximum queued steps of different tasks that are computed together. 1: each alone, and on a CPU bit for bit independent of
    other tasks; more: equal but for rounding, and faster where one step cannot fill the device."""
