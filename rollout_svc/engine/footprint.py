"""Methods that the service adds to vLLM's workers, and their device memory: weights, adapter slots and KV cache, each storage counted once.

Runs in the engine's processes.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from vllm.model_executor.model_loader.reload import layerwise

Storages = list[tuple[torch.UntypedStorage, int]]
"""Storages and their sizes in bytes."""

SLOT_ATTRIBUTES = ("lora_a_stacked", "lora_b_stacked")
"""Attributes of a layer that hold the adapters of a batch: tensors that are neither parameters nor buffers."""


class Extension:
    """Extension of vLLM's workers (`worker_extension_cls`). `self: Any` is the worker, whose types are loose."""

    def marlaas_sizes(self: Any) -> tuple[int, int, int]:
        """Bytes that level 1 keeps in host memory (weights, adapter slots, and on a GPU vLLM's estimate of its graphs), bytes of the KV
        cache, and vocabulary size. Call it while the engine is awake.
        """
        held = (weights(self.model_runner.model), cache(self.model_runner))
        weight_bytes, cache_bytes = (sum(size for _, size in part) for part in held)
        graph_bytes: int = getattr(self, "cudagraph_memory_estimate", 0)
        return weight_bytes + graph_bytes, cache_bytes, self.model_runner.model_config.get_vocab_size()

    def marlaas_random_adapters(self: Any, numbers: list[int], rank: int) -> None:
        """Load an adapter of random matrices under each number, as large as the layers that they change."""
        loaded = self.model_runner.lora_manager
        for number in numbers:
            adapter = loaded._adapter_manager.create_dummy_lora(number, rank, loaded.embedding_modules)
            random = torch.Generator().manual_seed(number)
            for layer in adapter.loras.values():
                for matrix in _tensors([layer.lora_a, layer.lora_b]):
                    matrix.normal_(std=matrix.shape[-1] ** -0.5, generator=random)
            loaded._adapter_manager.add_adapter(adapter)

    def marlaas_sleep_again(self: Any, level: int) -> None:
        """Put a GPU's worker whose wake from `level` failed back to sleep; allocations that are still asleep stay as they are.

        Level 2 has saved the model's buffers, which return after all weights are mapped. Another level 2 before that would read memory that
        is not mapped, which ends the process, and save it in their place.
        """
        abandon_reload(self.model_runner.model)
        if level == 2 and self._sleep_saved_buffers:
            self.discard(("weights",))
            level = 1
        self.sleep(level)


def abandon_reload(model: torch.nn.Module) -> None:
    """Restore the original tensors of layers that were not loaded completely: a failed reload leaves them on device `meta`."""
    for layer in model.modules():
        info = layerwise.get_layerwise_info(layer)
        if info.can_load():
            layerwise._place_kernel_tensors(layer, info)
            info.reset()


def weights(model: torch.nn.Module) -> Storages:
    """Storages of parameters and adapter slots, without buffers: these are small, and no checkpoint has them."""
    buffers = {storage.data_ptr() for storage, _ in storages(buffer for _, buffer in model.named_buffers())}
    parameters = (parameter.data for parameter in model.parameters())
    found = storages(chain(parameters, _slots(model)))
    return [(storage, size) for storage, size in found if storage.data_ptr() not in buffers]


def cache(runner: Any) -> Storages:
    """Storages of the KV cache of vLLM's model runner, whose types are loose."""
    layers: Iterable[Any] = runner.vllm_config.compilation_config.static_forward_context.values()
    held = (getattr(layer, "kv_cache", None) for layer in layers)
    return storages(chain(_tensors(runner.kv_caches), chain.from_iterable(map(_tensors, held))))


def storages(tensors: Iterable[torch.Tensor]) -> Storages:
    """Distinct non-empty storages of `tensors`: tied weights and views share one."""
    found: dict[int, tuple[torch.UntypedStorage, int]] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            found.setdefault(storage.data_ptr(), (storage, storage.nbytes()))
    return list(found.values())


def _slots(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    for module in model.modules():
        for name in SLOT_ATTRIBUTES:
            yield from _tensors(getattr(module, name, None))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a tensor or in nested lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _tensors(one)
