"""Bytes of a sampler's state, and its capacity while its engine may be closed.

Weights and KV cache are counted apart, because `host` keeps the weights alone. A parked pool is admitted work by its capacity, so that
there is a reason to wake.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from common.pools import precision_on
from common.pools.memory import ELEMENT_BYTES, GIB, ModelShape, loaded_bytes
from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.engine import Engine


@dataclass(frozen=True)
class Sizes:
    weights: int
    """Parameters and adapter slots."""
    cache: int
    """KV cache; as long as it is an estimate for a GPU, all else that vLLM takes there, too."""

    @property
    def total(self) -> int:
        return self.weights + self.cache


def expected_sizes(settings: EngineSettings, gpu_bytes: int | None) -> Sizes:
    """An estimate for an engine that was never open. `gpu_bytes`: memory of its GPU; None on a CPU."""
    weights = _weights_bytes(settings, cpu=gpu_bytes is None)
    if gpu_bytes is None:
        return Sizes(weights, int(settings.kv_cache_gib * GIB))
    return Sizes(weights, max(0, int(settings.gpu_memory_share * gpu_bytes) - weights))


def model_shape(model: str) -> ModelShape | None:
    """None for a kind of model that is not known, and where there is no folder."""
    try:
        return ModelShape.of(json.loads((Path(model) / "config.json").read_text()))
    except (OSError, ValueError):
        return None


def _weights_bytes(settings: EngineSettings, *, cpu: bool) -> int:
    """Where the model's kind is not known, without adapter slots."""
    precision = precision_on(settings.precision, cpu=cpu)
    shape = model_shape(settings.model)
    slot = _slot_parameters(shape, settings.max_rank, cpu=cpu) if shape else 0
    return loaded_bytes(Path(settings.model), precision) + settings.adapters * slot * ELEMENT_BYTES[precision]


def _slot_parameters(shape: ModelShape, rank: int, *, cpu: bool) -> int:
    """Of one adapter. On a CPU `cpu/lora.py` has the products of queries, keys and values in one matrix, and gate and up in one: each is
    as wide as all its parts together, and 0 outside of them."""
    zeros = shape.layers * rank * (2 * (shape.queries + 2 * shape.keys) + 2 * shape.intermediate) if cpu else 0
    return shape.adapter_parameters(rank) + zeros


KEY_AND_VALUE = 2


class Capacity:
    """Tokens of the KV cache: the engine's own while it is open, else what it last had, or before its first start an estimate."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._last = expected_kv_tokens(engine)

    @property
    def kv_tokens(self) -> int:
        self._last = self._engine.process.kv_tokens or self._last
        return self._last


def expected_kv_tokens(engine: Engine) -> int:
    """On a CPU from the model's shape and the cache's size; elsewhere, and for unknown models, as many as all its sequences may have."""
    settings = engine.settings
    shape = model_shape(settings.model) if engine.is_cpu else None
    if shape is None:
        return settings.sequences * settings.context_tokens
    token_bytes = KEY_AND_VALUE * shape.layers * shape.keys * ELEMENT_BYTES[precision_on(settings.precision, cpu=engine.is_cpu)]
    return int(settings.kv_cache_gib * GIB) // token_bytes
