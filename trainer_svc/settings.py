"""Settings of the trainer: `MARLAAS_TRAINER_…`."""

from typing import ClassVar, Literal

from pydantic import Field

from common.runtime.settings import Cores, Settings


class TrainerSettings(Settings):
    service: ClassVar[str] = "TRAINER"

    pool: str
    """Which pool of the pools file this replica trains for."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = Field(default=1, ge=1)
    """Of the processor, for one step. More than there are free cores makes steps slower."""
    cores: Cores = ()
    """Pin the process to these, as `0,2-3`; empty: no pinning."""
    resident_tasks: int = Field(default=32, ge=1)
    """Tasks whose adapter and optimizer state stay in memory; others are read from their checkpoints when needed."""
    resident_gib: float = Field(default=8.0, gt=0)
    """Memory of the device for those states; beyond it, too, the task that waited longest is parked."""
    shared_steps: int = Field(default=1, ge=1)
    """Steps of different tasks that are computed together when they are ready together. 1: each by itself, and on a CPU bit
    for bit the same whoever else trains; more: equal but for rounding, and faster where a step alone cannot fill the device."""
