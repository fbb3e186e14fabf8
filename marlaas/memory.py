"""Memory estimate of a stack's trainers, from each pool's `config.json` and settings."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.pools import Pool, Pools, pool_memory, precision_on, recomputed_layers
from common.pools.memory import GIB, ModelShape, machine_bytes, tokens_that_fit
from common.pools.model_files import kept_commit


def trainer_memory(pools: Pools, *, has_gpu: bool) -> Iterator[str]:
    """One line for each pool's trainer; names the setting to lower where the machine has less."""
    for name, pool in pools.items():
        limit = int(_gpu_bytes() * (1 - pool.gpu_memory_share)) if has_gpu else machine_bytes()
        yield f"trainer-{name}: {_said(name, pool, limit, has_gpu=has_gpu)}"


def _said(name: str, pool: Pool, limit: int, *, has_gpu: bool) -> str:
    config = model_config(pool.model, pool.revision)
    shape = ModelShape.of(config) if config else None
    if shape is None:
        return f"memory not estimated: {f'an unknown kind of model: {pool.model}' if config else f'{pool.model} is not downloaded yet'}"
    recomputed = recomputed_layers(pool, shape, limit, on_cpu=not has_gpu)
    estimate = pool_memory(pool, shape, on_cpu=not has_gpu, recomputed=recomputed)
    said = f"up to about {estimate}"
    if estimate.total <= limit:
        return said
    fitting = tokens_that_fit(
        shape,
        limit,
        rank=pool.max_rank,
        tokens=pool.train_tokens,
        precision=precision_on(pool.precision, cpu=not has_gpu),
        on_cpu=not has_gpu,
        recomputed=recomputed,
    )
    place = "remain for it on the GPU" if has_gpu else "are in this machine"
    way = f"lower train_tokens of pool {name} to {fitting} in the pools file" if fitting else "choose a smaller model"
    other = ", or set its checkpointing to 'auto'" if pool.checkpointing == "off" else ""
    return f"{said}; only {limit / GIB:.1f} GiB {place}: {way}{other}"


def model_config(model: str, revision: str | None = None) -> dict[str, Any] | None:
    """The base model's `config.json`, in its folder or in the Hugging Face cache; None where it is not downloaded yet."""
    path = Path(model) / "config.json"
    if not path.is_file():
        try:
            from huggingface_hub import try_to_load_from_cache
        except ImportError:  # a client's installation loads no models
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
    """Memory of the smallest GPU."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return min((int(line) * 2**20 for line in done.stdout.split() if line.isdigit()), default=0)
