"""Tokens per second of the bare inference engine, by the number of adapters in a batch. Prints JSON.

    python bench/engine.py [--pool tiny] [--requests 128] [--tokens 32] [--prompt 48] [--adapters 0,1,8,16] [--cores 0] [--plain]

Every request has its own seed and runs to `--tokens`; a quarter of them share each prompt, as members of a group do.
`publish_ms` is the median time from an adapter's files to the first token that it samples. Zero adapters is the base model.
The first round of each setting warms caches and is not counted. `--plain` measures without invariance (`invariant` in pools.toml).
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from bench.harness import part
from common.pools import read_pools
from common.spec import LORA_TARGETS
from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.engine import Engine, SampleRequest

ROUNDS = 5
RANK = 8


def write_adapter(model: Path, folder: Path, seed: int, rank: int = RANK) -> None:
    """A PEFT folder with small random weights for every linear layer of `model`."""
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for file in model.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  # not a dict
                if name.split(".")[-2] in LORA_TARGETS:
                    outputs, inputs = tensors.get_slice(name).get_shape()
                    place = f"base_model.model.{name.removesuffix('.weight')}"
                    weights[f"{place}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator) * 0.02
                    weights[f"{place}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator) * 0.02
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 16, "bias": "none", "target_modules": LORA_TARGETS}
    (folder / "adapter_config.json").write_text(json.dumps(config))


async def round_s(engine: Engine, options: argparse.Namespace, adapters: list[str], number: int) -> float:
    """Seconds that `options.requests` requests take together."""

    def request(place: int) -> SampleRequest:
        group = place // 4
        return SampleRequest(
            request_id=f"{len(adapters)}-{number}-{place}",
            ids=[3 + (group * 31 + token * 7) % 500 for token in range(options.prompt)],
            max_tokens=options.tokens,
            temperature=1.0,
            seed=number * options.requests + place,
            stop_ids=[],
            adapter=adapters[group % len(adapters)] if adapters else None,
        )

    started = time.perf_counter()
    await asyncio.gather(*(engine.sample(request(place)) for place in range(options.requests)))
    return time.perf_counter() - started


async def published_after_s(engine: Engine, name: str, folder: Path) -> float:
    """Seconds from an adapter's files on the disk to the first token that it sampled."""
    started = time.perf_counter()
    await engine.load(name, folder)
    await engine.sample(
        SampleRequest(request_id=f"first-{name}", ids=[3, 4, 5], max_tokens=1, temperature=1.0, seed=1, stop_ids=[], adapter=name)
    )
    return time.perf_counter() - started


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    pool = read_pools(options.pools)[options.pool]
    started = time.perf_counter()
    cores = tuple(int(core) for core in options.cores.split(",") if core)
    settings = EngineSettings.of(pool, device=options.device, cores=cores)
    with part.phase("start"):
        engine = await Engine.start(replace(settings, invariant=False) if options.plain else settings)
    with part.phase("first_token"):
        await engine.warm_up()
    found: dict[str, Any] = {
        "invariant": engine.is_invariant,
        "pool": options.pool,
        "start_s": round(time.perf_counter() - started, 1),
        "kv_tokens": engine.process.kv_tokens,
    }
    try:
        with tempfile.TemporaryDirectory() as folder, part.phase("measured"):
            for count in options.adapters:
                names = [f"bench-{count}-{number}" for number in range(count)]
                published_s: list[float] = []
                for number, name in enumerate(names):
                    write_adapter(Path(pool.model), Path(folder) / name, number)
                    published_s.append(await published_after_s(engine, name, Path(folder) / name))
                rounds = [await round_s(engine, options, names, number) for number in range(ROUNDS + 1)][1:]
                tokens = options.requests * options.tokens
                found[f"{count} adapters"] = {
                    "tokens_per_s": round(tokens * ROUNDS / sum(rounds)),
                    "best_tokens_per_s": round(tokens / min(rounds)),
                    "publish_ms": round(1000 * statistics.median(published_s), 1) if published_s else None,
                }
                part.keep(found)
                for name in names:
                    await engine.unload(name)
    finally:
        with part.phase("stop"):
            engine.process.close()
    found |= {"requests": options.requests, "tokens": options.tokens, "prompt": options.prompt, "load_average": os.getloadavg()[0]}
    return found


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Options, by default the command line's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", type=Path, default=Path(__file__).parents[1] / "pools.toml")
    parser.add_argument("--pool", default="tiny")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--cores", default="0")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=48)
    parser.add_argument("--adapters", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1, 8, 16])
    return parser.parse_args(given)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(arguments())), indent=2))
