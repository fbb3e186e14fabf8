"""Memory estimate of a stack's trainers, from each pool's `config.json` and settings."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.leases import DEVICE_SHARE
from common.pools import Accelerator, Pool, Pools, pool_memory, precision_on, recomputed_layers
from common.pools.memory import GIB, ModelShape, machine_bytes, tokens_that_fit, total_within
from common.pools.model_files import kept_commit


@dataclass(frozen=True)
class _Limit:
    """Memory that a trainer may use."""

    size: int
    """Bytes, including the process's own on a CPU."""
    on_cpu: bool
    where: str
    """Source of the limit, worded as the end of a sentence."""
    way: str = ""
    """Alternative remedy."""


def trainer_memory(pools: Pools, accelerators: Mapping[str, Accelerator], *, has_gpu: bool) -> Iterator[str]:
    """One line for each pool's trainer; names the setting to lower if the machine, or its shared accelerator, has less memory."""
    for name, pool in pools.items():
        yield f"trainer-{name}: {_said(name, pool, _limit(pool, accelerators, has_gpu=has_gpu))}"


def _limit(pool: Pool, accelerators: Mapping[str, Accelerator], *, has_gpu: bool) -> _Limit:
    """Limit of a pool's trainer; the smallest of its accelerators if it shares some."""
    shared = [_of_accelerator(name, accelerators[name]) for name in pool.trainers_on]
    if shared:
        return min(shared, key=lambda one: one.size)
    if has_gpu:
        return _Limit(int(_gpu_bytes() * (1 - pool.gpu_memory_share)), on_cpu=False, where="remain for it on the GPU")
    return _Limit(machine_bytes(), on_cpu=True, where="are in this machine")


def _of_accelerator(name: str, one: Accelerator) -> _Limit:
    budget = int(DEVICE_SHARE * _gpu_bytes() if one.memory_gib is None else one.memory_gib * GIB)
    way = f", or raise memory_gib of [accelerator.{name}]" if one.memory_gib is not None else ""
    return _Limit(total_within(budget, on_cpu=one.on_cpu), one.on_cpu, f"may be used on accelerator {name} and by its process", way)


def _said(name: str, pool: Pool, limit: _Limit) -> str:
    config = model_config(pool.model, pool.revision)
    shape = ModelShape.of(config) if config else None
    if shape is None:
        return f"memory not estimated: {f'an unknown kind of model: {pool.model}' if config else f'{pool.model} is not downloaded yet'}"
    recomputed = recomputed_layers(pool, shape, limit.size, on_cpu=limit.on_cpu)
    estimate = pool_memory(pool, shape, on_cpu=limit.on_cpu, recomputed=recomputed)
    said = f"up to about {estimate}"
    if estimate.total <= limit.size:
        return said
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
    return f"{said}; only {limit.size / GIB:.1f} GiB {limit.where}: {way}{limit.way}{other}"


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


def _gpu_bytes() -> int:
    """Memory of the smallest GPU in bytes; 0 without a GPU."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return min((int(line) * 2**20 for line in done.stdout.split() if line.isdigit()), default=0)
