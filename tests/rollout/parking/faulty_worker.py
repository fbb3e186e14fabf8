"""The worker of sleeping engines, with the faults that tests cause in it; vLLM finds it by name."""

import os
import time
from typing import Any

import torch

from rollout_svc.engine.cpu.worker import SleepingCpuWorker
from rollout_svc.engine.footprint import SLOT_ATTRIBUTES, cache, storages

BEAT_S = 0.01
"""Seconds between two beats of the tests' event loop."""
LATE_S, GONE_S = 0.05, 60.0
"""Age of a beat from which on no step begins, and from which on the loop has ended and steps begin again."""


class FaultyWorker(SleepingCpuWorker):
    _beats: int | None = None

    def follow(self, path: str) -> None:
        """From now on begin no step while the event loop that beats there is stopped: it would find requests ended that it is to freeze."""
        self._beats = os.open(path, os.O_RDONLY)

    def execute_model(self, *args: Any, **options: Any) -> Any:
        while self._beats is not None and LATE_S < time.monotonic() - float(os.pread(self._beats, 32, 0)) < GONE_S:
            time.sleep(BEAT_S)
        return super().execute_model(*args, **options)

    def fill_cache(self) -> None:
        """Write to every byte of the KV cache, so that the kernel has given all its pages. 255 in each is not a number."""
        for storage, _ in cache(self.model_runner):
            storage.fill_(255)

    def drop_buffer(self) -> None:
        """Lose the rotary tables, as vLLM's worker for GPUs would if it did not save them."""
        self._lost = [(buffer, buffer.clone()) for name, buffer in self._buffers() if "cos_sin" in name]
        assert self._lost
        for buffer, _ in self._lost:
            buffer.zero_()

    def return_buffer(self) -> None:
        for buffer, value in self._lost:
            buffer.copy_(value)

    def exchange_slots(self) -> None:
        """Put each slot's adapter into the next slot."""
        seen: set[int] = set()
        for module in self.model_runner.model.modules():
            for name in SLOT_ATTRIBUTES:
                for slots_S in getattr(module, name, None) or ():
                    if id(slots_S) not in seen:
                        seen.add(id(slots_S))
                        slots_S.copy_(torch.roll(slots_S.clone(), 1, 0))

    def copied_weights(self) -> int:
        """Bytes of weights that layers multiply by and that are no parameters: no sleep would free them."""
        model = self.model_runner.model
        known = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        multipliers = [vars(layer)["cpu_linear"] for layer in model.modules() if "cpu_linear" in vars(layer)]
        cells = [cell.cell_contents for multiply in multipliers for cell in multiply.__closure__ or ()]
        found = storages(value for value in cells if isinstance(value, torch.Tensor))
        assert found
        return sum(size for storage, size in found if storage.data_ptr() not in known)

    def _buffers(self) -> Any:
        return self.model_runner.model.named_buffers()
