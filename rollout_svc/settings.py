"""Settings of the sampler: `MARLAAS_ROLLOUT_…`."""

from typing import ClassVar, Literal

from pydantic import Field

from common.formats.cores import Cores
from common.runtime.settings import Settings


class RolloutSettings(Settings):
    service: ClassVar[str] = "ROLLOUT"

    pool: str
    """Pool of the pools file that this replica samples for."""
    takes: Literal["both", "serving", "rollouts"] = "both"
    """Work that the replica takes in a pool with `[NAME.serving]`. `serving` needs a device of its own."""
    accelerator: str = ""
    """Shared accelerator of the pools file on which the engine takes turns; empty: the engine has its own device."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    cores: Cores = ()
    """Processor cores for the engine, as `0,2-3`, with a thread for each; empty: one thread, wherever it fits."""
    canary_tolerance: float = Field(default=0.0, ge=0)
    """Maximum difference between the trainer's log-probabilities and the engine's. 0: chosen by the device's precision: 0.001 on
    a CPU; on a GPU 1.0, and 0.1 on average."""
    keep_versions: int = Field(default=2, ge=0)
    """Versions behind a task's newest that stay loaded while idle."""
    keep_s: float = Field(default=60.0, ge=0)
    """Seconds that older versions stay loaded after their last use, if there is room."""
    pull: int = Field(default=4, ge=1)
    """Maximum messages of one pull request, so that replicas share a burst."""
