"""Capacity of a sampler whose engine may be closed: a parked pool is admitted work by it, so that there is a reason to wake."""

from common.pools import precision_on
from common.pools.memory import ELEMENT_BYTES, GIB
from rollout_svc.accelerators.sizes import model_shape
from rollout_svc.engine.engine import Engine

KEY_AND_VALUE = 2


class Capacity:
    """Tokens of the KV cache: the engine's own while it is open, else what it last had, or before its first start an estimate."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._last = expected_kv_tokens(engine)

    @property
    def kv_tokens(self) -> int:
        self._last = self._engine.kv_tokens or self._last
        return self._last


def expected_kv_tokens(engine: Engine) -> int:
    """On a CPU from the model's shape and the cache's size; elsewhere, and for unknown models, as many as all its sequences may have."""
    settings = engine.settings
    shape = model_shape(settings.model) if engine.is_cpu else None
    if shape is None:
        return settings.sequences * settings.context_tokens
    token_bytes = KEY_AND_VALUE * shape.layers * shape.keys * ELEMENT_BYTES[precision_on(settings.precision, cpu=engine.is_cpu)]
    return int(settings.kv_cache_gib * GIB) // token_bytes
