"""Device memory of a vLLM worker: storages of weights, adapter slots and KV cache, each counted once.

Runs in the engine's processes. `Footprint` is added to vLLM's workers as their extension class.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch

Storages = list[tuple[torch.UntypedStorage, int]]
"""Storages and their sizes in bytes."""

SLOT_ATTRIBUTES = ("lora_a_stacked", "lora_b_stacked")
"""Attributes of a layer that hold the adapters of a batch: tensors that are neither parameters nor buffers."""


class Footprint:
    """Extension of vLLM's workers; `self` is the worker."""

    model_runner: Any

    def marlaas_sizes(self) -> tuple[int, int, int]:
        """Bytes of weights and adapter slots, bytes of the KV cache, and vocabulary size. Call it while the engine is awake."""
        held = (weights(self.model_runner.model), cache(self.model_runner))
        weight_bytes, cache_bytes = (sum(size for _, size in part) for part in held)
        return weight_bytes, cache_bytes, self.model_runner.model_config.get_vocab_size()


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
