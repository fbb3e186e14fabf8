"""Difference of engine and trainer under the same adapter, alone and in a batch of many: `python -m bench.canary`.

Random adapters of four ranks and three sizes. The trainer computes the log-probabilities of its canary under each; the engine
computes them under one adapter at a time, and then under all at once, where kernels for mixed adapters could confuse two. Prints
JSON. The exit status is 1 when a difference is above the sampler's tolerance, or one adapter's canary would pass for another's.
`--pools FILE --pool NAME` takes another base model than the tiny one.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import llvmlite.binding  # noqa: F401  # pyright: ignore[reportUnusedImport]  vLLM must start beside it: see rollout_svc/engine/cpu/platform.py
import numpy as np
import torch

from bench.harness import part
from bench.harness.report import ROOT
from common.pools import Pool, read_pools
from common.spec import Lora
from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.engine import Engine
from trainer_svc.model.adapter import initial_adapter, write_adapter
from trainer_svc.model.packing import Row, collate
from trainer_svc.model.policy import Adapted, Policy, canary_sample, choose_device

RANKS = (4, 8, 16, 32)
SIZES = (0.02, 0.05, 0.1)
"""Standard deviation of an adapter's weights, as a multiple of 8 / rank."""


def main() -> None:
    options = arguments()
    pool = read_pools(options.pools)[options.pool].model_copy(update={"precision": options.precision, "head": options.head})
    found = asyncio.run(differences(pool, options.device, options.adapters))
    part.keep(found)
    print(json.dumps(found, indent=1))
    sys.exit(0 if found["is_right"] else 1)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", type=Path, default=ROOT / "pools.toml")
    parser.add_argument("--pool", default="tiny")
    parser.add_argument("--precision", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--head", choices=["model", "float32"], default="model")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--adapters", type=int, default=6)
    return parser.parse_args(given)


async def differences(pool: Pool, device: str, adapters: int) -> dict[str, Any]:
    """`alone`, `together`: adapter → [largest, mean] difference per token in nats; `other`: the minima for another's canary."""
    with tempfile.TemporaryDirectory(prefix="marlaas-canary-") as name:
        folder = Path(name)
        with part.phase("trainer"):
            ids, expected = trainer_logprobs(pool, device, adapters, folder)
        settings = EngineSettings.of(pool, device=device, cores=(0,) if device == "cpu" else ())  # type: ignore[arg-type]
        with part.phase("start"):
            engine = await Engine.start(replace(settings, adapters=adapters, adapters_held=adapters))
        try:
            with part.phase("first_token"):
                await engine.warm_up()
            with part.phase("measured"):
                for adapter in expected:
                    await engine.load(adapter, folder / adapter)
                alone = {adapter: await engine_logprobs(engine, ids, adapter) for adapter in expected}
                got = await asyncio.gather(*(engine_logprobs(engine, ids, adapter) for adapter in expected))
                together = dict(zip(expected, got, strict=True))
        finally:
            with part.phase("stop"):
                engine.process.close()
    allowed = engine.canary_tolerance
    found = {
        "alone": {adapter: apart(alone[adapter], expected[adapter]) for adapter in expected},
        "together": {adapter: apart(together[adapter], expected[adapter]) for adapter in expected},
        "other": [
            min(apart(alone[one], expected[other])[place] for one in expected for other in expected if one != other) for place in (0, 1)
        ],
    }
    own = [*found["alone"].values(), *found["together"].values()]
    passes = all(largest <= allowed.max and mean <= allowed.mean for largest, mean in own)
    mistaken = found["other"][0] <= allowed.max and found["other"][1] <= allowed.mean
    return {"adapters": adapters, "allowed": [allowed.max, allowed.mean], "is_right": passes and not mistaken} | found


def trainer_logprobs(pool: Pool, device: str, adapters: int, folder: Path) -> tuple[list[int], dict[str, np.ndarray]]:
    """Token ids of the canary, and its log-probabilities under each adapter, which is written into `folder`."""
    policy = Policy.load(pool.model, choose_device(device), pool.precision, pool.head)  # type: ignore[arg-type]
    sample = canary_sample(policy.vocabulary)
    packed = collate([(0, Row(sample.input_tokens, (sample,)))])
    expected: dict[str, np.ndarray] = {}
    for number in range(adapters):
        rank = min(RANKS[number % len(RANKS)], pool.max_rank)
        layout, fresh = initial_adapter(Lora(rank=rank), number, policy.layers)
        size = SIZES[number % len(SIZES)] * 8 / rank
        vector = (torch.randn(fresh.shape, generator=torch.Generator().manual_seed(number)) * size).to(policy.device)
        name = f"adapter-{number}"
        with torch.no_grad():
            write_adapter(folder / name, layout, vector, policy.dtype)
            expected[name] = policy.scores(packed, [Adapted(layout, vector)]).logprobs_N.float().cpu().numpy()
    return sample.ids_T.tolist(), expected


async def engine_logprobs(engine: Engine, ids: list[int], adapter: str) -> np.ndarray:
    return np.asarray(await engine.prompt_logprobs(ids, adapter), dtype=np.float32)


def apart(one: np.ndarray, other: np.ndarray) -> list[float]:
    """Largest and mean difference."""
    return [round(float(np.abs(one - other).max()), 6), round(float(np.abs(one - other).mean()), 6)]


if __name__ == "__main__":
    main()
