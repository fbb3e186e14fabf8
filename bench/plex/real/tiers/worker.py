"""Worker of a CPU engine whose KV cache can be filled: the kernel gives a page only once it is written to."""

from rollout_svc.engine.cpu.worker import SleepingCpuWorker
from rollout_svc.engine.footprint import cache

FILLED = 1
"""In each byte; as floats, numbers near zero."""


class FilledWorker(SleepingCpuWorker):
    def fill_cache(self) -> None:
        for storage, _ in cache(self.model_runner):
            storage.fill_(FILLED)  # pyright: ignore[reportAttributeAccessIssue]  PyTorch's stub lacks it
