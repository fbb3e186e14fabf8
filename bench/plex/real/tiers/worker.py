"""Workers of CPU engines whose KV cache can be filled: the kernel gives a page only once it is written to."""

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from rollout_svc.sleeping.cpu_worker import SleepingCpuWorker
from rollout_svc.sleeping.footprint import cache

FILLED = 1
"""In each byte; as floats, numbers near zero."""


class FilledWorker(SleepingCpuWorker):
    def fill_cache(self) -> None:
        fill(self.model_runner)


class FilledStockWorker(CPUWorker):
    """vLLM's own, which answers `sleep` and frees nothing."""

    def fill_cache(self) -> None:
        fill(self.model_runner)


def fill(runner: Any) -> None:
    for storage, _ in cache(runner):
        storage.fill_(FILLED)  # pyright: ignore[reportAttributeAccessIssue]  PyTorch's stub lacks it
