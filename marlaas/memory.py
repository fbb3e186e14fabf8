"""Memory estimates of a stack's samplers and trainers, from each pool's `config.json` and settings."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.pools import Accelerator, Pool, Pools, pool_memory, precision_on, recomputed_layers
from common.pools.memory import DEVICE_SHARE, ELEMENT_BYTES, GIB, ModelShape, machine_bytes, tokens_that_fit, total_within
from common.pools.model_files import kept_commit
from marlaas.stack.placement import Machine


@dataclass(frozen=True)
class _Limit:
    """Memory that a sampler or trainer may use."""

    size: int
    """Bytes; on a CPU, they include the memory of the process itself."""
    on_cpu: bool
    where: str
    """Where the limit comes from, as the end of the sentence "only 3.2 GiB …"."""
    way: str = ""
    """Another remedy, besides fewer tokens or a smaller model, as the end of a sentence; empty: none."""


def memory_needs(pools: Pools, accelerators: Mapping[str, Accelerator], machine: Machine) -> Iterator[tuple[str, str]]:
    """Estimate for each pool's sampler and trainer; and what it has too little of, with the setting to change, or nothing."""
    for name, pool in pools.items():
        config = model_config(pool.model, pool.revision)
        shape = ModelShape.of(config) if config else None
        if shape is None or (machine.gpus and not _gpu_bytes(machine)):
            unknown = f"an unknown kind of model: {pool.model}" if config else f"{pool.model} is not downloaded yet"
            yield f"{name}: memory not estimated: {unknown if shape is None else 'a MIG device of unknown size'}", ""
            continue
        beside = [one for one in pools.values() if not one.samplers_on] if len(machine.gpus) == 1 else [pool]
        left = max(0.0, DEVICE_SHARE - sum(one.gpu_memory_share for one in beside))
        yield _sampler(name, pool, shape, _limit(pool.samplers_on, 1, accelerators, machine), _gpu_bytes(machine))
        yield _trainer(name, pool, shape, _limit(pool.trainers_on, left, accelerators, machine))


def _sampler(name: str, pool: Pool, shape: ModelShape, limit: _Limit, gpu_bytes: int) -> tuple[str, str]:
    setting = f"{'kv_cache_gib' if limit.on_cpu else 'gpu_memory_share'} of pool {name}"
    element = ELEMENT_BYTES[precision_on(pool.precision, cpu=limit.on_cpu)]
    adapters, model = pool.adapters + (pool.serving.adapters if pool.serving else 0), shape.parameters * element
    slots = adapters * shape.slot_parameters(pool.max_rank, cpu=limit.on_cpu) * element
    cache = int(pool.kv_cache_gib * GIB) if limit.on_cpu else max(0, int(pool.gpu_memory_share * gpu_bytes) - model - slots)
    token, lack = shape.cache_elements * element, ""
    if cache < (whole := pool.context_tokens * token):
        lack = f"{pool.context_tokens} tokens (context_tokens) take {whole / GIB:.2f} GiB of KV cache: raise {setting}"
    elif total_within(model + slots + cache, on_cpu=limit.on_cpu) > limit.size:
        lack = f"only {limit.size / GIB:.1f} GiB {limit.where}: lower {setting}{limit.way}"
    sizes = f"model {model / GIB:.1f} GiB, slots of {adapters} adapters {slots / GIB:.1f}, KV cache {cache / GIB:.1f}"
    return f"rollout-{name}: {sizes} for about {cache // token} tokens", lack


def _limit(on: tuple[str, ...], gpu_share: float, accelerators: Mapping[str, Accelerator], machine: Machine) -> _Limit:
    """Limit of a process with these shared accelerators, the smallest of theirs; without any, `gpu_share` of a GPU."""
    shared = [_of_accelerator(name, accelerators[name], machine) for name in on]
    if shared:
        return min(shared, key=lambda one: one.size)
    if machine.gpus:
        return _Limit(int(_gpu_bytes(machine) * gpu_share), on_cpu=False, where="remain for it on the GPU")
    return _Limit(machine_bytes(), on_cpu=True, where="are in this machine")


def _of_accelerator(name: str, one: Accelerator, machine: Machine) -> _Limit:
    budget = int(DEVICE_SHARE * _gpu_bytes(machine) if one.memory_gib is None else one.memory_gib * GIB)
    way = f", or raise memory_gib of [accelerator.{name}]" if one.memory_gib is not None else ""
    return _Limit(total_within(budget, on_cpu=one.on_cpu), one.on_cpu, f"may be used on accelerator {name} and by its process", way)


def _trainer(name: str, pool: Pool, shape: ModelShape, limit: _Limit) -> tuple[str, str]:
    recomputed = recomputed_layers(pool, shape, limit.size, on_cpu=limit.on_cpu)
    estimate = pool_memory(pool, shape, on_cpu=limit.on_cpu, recomputed=recomputed)
    said = f"trainer-{name}: up to about {estimate}"
    if estimate.total <= limit.size:
        return said, ""
    fitting = tokens_that_fit(
        shape,
        limit.size,
        rank=pool.max_rank,
        tokens=pool.train_tokens,
        precision=precision_on(pool.precision, cpu=limit.on_cpu),
        on_cpu=limit.on_cpu,
        recomputed=recomputed,
    )
    way = f"lower train_tokens of pool {name} to {fitting} in the pools file" if fitting else "choose a smaller model"
    other = ", or set its checkpointing to 'auto'" if pool.checkpointing == "off" else ""
    return said, f"only {limit.size / GIB:.1f} GiB {limit.where}: {way}{limit.way}{other}"


def model_config(model: str, revision: str | None = None) -> dict[str, Any] | None:
    """The base model's `config.json`, in its folder or in the Hugging Face cache; None if it is not downloaded yet."""
    path = Path(model) / "config.json"
    if not path.is_file():
        try:
            from huggingface_hub import try_to_load_from_cache
        except ImportError:  # a client's installation does not load models
            return None
        found = (
            try_to_load_from_cache(model, "config.json", revision=revision or kept_commit(model)) if not Path(model).is_absolute() else None
        )
        if not isinstance(found, str):
            return None
        path = Path(found)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _gpu_bytes(machine: Machine) -> int:
    """Memory of the smallest GPU in bytes; 0 without a GPU."""
    return min((gpu.memory_bytes for gpu in machine.gpus), default=0)
