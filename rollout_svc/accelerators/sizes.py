"""Size of a sampler's state in bytes, and its KV capacity even while the engine is closed.

Weights and KV cache are counted separately, because tier `host` keeps only the weights. The scheduler admits work to a parked pool by
its capacity, so that there is a reason to wake it.
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
    """Bytes of parameters, adapter slots, and the graphs of an awake engine on a GPU."""
    cache: int
    """Bytes of KV cache. A GPU estimate also includes everything else that vLLM allocates there."""

    @property
    def total(self) -> int:
        return self.weights + self.cache


def expected_sizes(settings: EngineSettings, gpu_bytes: int | None) -> Sizes:
    """Estimated sizes for an engine that never started. `gpu_bytes`: memory of its GPU; None on a CPU."""
    weights = _weights_bytes(settings, cpu=gpu_bytes is None)
    if gpu_bytes is None:
        return Sizes(weights, int(settings.kv_cache_gib * GIB))
    return Sizes(weights, max(0, int(settings.gpu_memory_share * gpu_bytes) - weights))


def model_shape(model: str) -> ModelShape | None:
    """Shape read from the model's `config.json`; None if the file is missing or its architecture unknown."""
    try:
        return ModelShape.of(json.loads((Path(model) / "config.json").read_text()))
    except (OSError, ValueError):
        return None


def _weights_bytes(settings: EngineSettings, *, cpu: bool) -> int:
    """Bytes of parameters and adapter slots; slots are left out if the model's architecture is unknown."""
    precision = precision_on(settings.precision, cpu=cpu)
    shape = model_shape(settings.model)
    slot = shape.slot_parameters(settings.max_rank, cpu=cpu) if shape else 0
    return loaded_bytes(Path(settings.model), precision) + settings.adapters * slot * ELEMENT_BYTES[precision]


class Capacity:
    """KV cache capacity in tokens: the open engine's own, else its last known value, else an estimate."""

    def __init__(self, engine: Engine, gpu_bytes: int | None = None) -> None:
        """`gpu_bytes`: memory of a GPU whose engine is closed."""
        self._engine = engine
        self._last = expected_kv_tokens(engine, gpu_bytes)

    @property
    def kv_tokens(self) -> int:
        self._last = self._engine.process.kv_tokens or self._last
        return self._last


def expected_kv_tokens(engine: Engine, gpu_bytes: int | None) -> int:
    """Estimate in tokens from model shape and cache size; for unknown models, or a GPU of unknown size, sequences × context length."""
    settings = engine.settings
    shape = model_shape(settings.model) if engine.is_cpu or gpu_bytes else None
    if shape is None:
        return settings.sequences * settings.context_tokens
    token_bytes = shape.cache_elements * ELEMENT_BYTES[precision_on(settings.precision, cpu=engine.is_cpu)]
    return expected_sizes(settings, None if engine.is_cpu else gpu_bytes).cache // token_bytes
