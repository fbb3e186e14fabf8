"""The worker of sleeping engines, with the faults that tests cause in it; vLLM finds it by name."""

from typing import Any

import torch

from rollout_svc.engine.cpu.worker import SleepingCpuWorker
from rollout_svc.engine.footprint import SLOT_ATTRIBUTES, cache, storages


class FaultyWorker(SleepingCpuWorker):
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
