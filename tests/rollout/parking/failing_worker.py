"""Workers with which no engine starts or samples, each for another reason; vLLM finds them by name."""

import os
import signal
from typing import Any

from rollout_svc.engine.cpu.worker import SleepingCpuWorker


class Killed(SleepingCpuWorker):
    """Ends as by the kernel, where a machine or container has no memory left."""

    def load_model(self, **_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Refused(SleepingCpuWorker):
    """Raises vLLM's error of a GPU of which others have too much."""

    def load_model(self, **_: Any) -> None:
        raise ValueError(
            "Free memory on device cuda:0 (20.11/79.1 GiB) on startup is less than desired GPU memory utilization (0.6, 47.46 GiB). "
            "Decrease GPU memory utilization or reduce GPU memory used by other processes."
        )


class Broken(SleepingCpuWorker):
    def load_model(self, **_: Any) -> None:
        raise ValueError("layer 3 of the model is not known here")


class Unfit(SleepingCpuWorker):
    """Starts, and is refused by the attention's kernel once it computes, as some sizes of a head are."""

    def execute_model(self, *_: Any, **__: Any) -> Any:
        raise ValueError("head size 40 is not supported\nby this attention")
