"""Difference of engine and trainer under the same adapter, alone and in a batch of many: `python -m bench.canary`.

Random adapters of four ranks and three sizes. The trainer computes the log-probabilities of its canary under each; the engine
computes them under one adapter at a time, and then in batches of 1, 2, 4 and so on up to all, where kernels for mixed adapters could
confuse two. Prints JSON. The exit status is 1 when a difference is above the sampler's tolerance, or a canary is nearer to another
adapter's than to its own.
`--pools FILE --pool NAME` takes another base model than the tiny one.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, count, permutations, takewhile
from pathlib import Path
from typing import Any

import llvmlite.binding  # noqa: F401  # pyright: ignore[reportUnusedImport]  vLLM must start beside it: see rollout_svc/engine/cpu/platform.py
import numpy as np
import torch

from bench.harness import part
from bench.harness.report import ROOT
from common.pools import Pool, read_pools
from common.spec import Lora
from rollout_svc.engine.config import EngineSettings, Tolerance
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
    sys.exit(f"bench.canary: {'; '.join(found['wrong'])}" if found["wrong"] else 0)


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
    """`alone`, `together`: adapter → [largest, mean] difference per token in nats, `batches`: the same by size of the batch, over its
    adapters; `other`: the minima for another's canary; `alike`: pairs of adapters that differ by less than the tolerance, which it cannot
    tell apart.
    """
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
                batches = {size: await together(engine, ids, list(expected)[:size]) for size in batch_sizes(adapters)}
        finally:
            with part.phase("stop"):
                engine.process.close()
    found = compared(alone, batches[adapters], expected, engine.canary_tolerance)
    return {"adapters": adapters, "head": pool.head, "batches": {size: largest(got, expected) for size, got in batches.items()}} | found


Logprobs = Mapping[str, np.ndarray]
"""Adapter → log-probabilities of the canary under it (T,)."""


def compared(alone: Logprobs, together: Logprobs, expected: Logprobs, allowed: Tolerance) -> dict[str, Any]:
    """The engine's against the trainer's; `wrong`: what must not be."""
    others = [apart(alone[one], expected[other]) for one, other in permutations(expected, 2)]
    found: dict[str, Any] = {"allowed": [allowed.max, allowed.mean], "wrong": []}
    for name, got in (("alone", alone), ("together", together)):
        found[name] = {adapter: apart(got[adapter], expected[adapter]) for adapter in expected}
        if beyond := [adapter for adapter in expected if allowed.excess(got[adapter], expected[adapter])]:
            found["wrong"].append(f"{name}, above the tolerance: {', '.join(beyond)}")
        nearest = {one: min(expected, key=lambda other, one=one: np.abs(got[one] - expected[other]).mean()) for one in expected}
        if mistaken := [f"{one} as {other}" for one, other in nearest.items() if one != other]:
            found["wrong"].append(f"{name}, nearer to another's canary: {', '.join(mistaken)}")
    alike = sum(allowed.excess(expected[one], expected[other]) is None for one, other in combinations(expected, 2))
    return found | {"other": [min(each) for each in zip(*others, strict=True)], "alike": alike}


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


def batch_sizes(adapters: int) -> list[int]:
    """Powers of two below `adapters`, and `adapters`."""
    return [*takewhile(lambda size: size < adapters, (2**power for power in count())), adapters]


async def together(engine: Engine, ids: list[int], adapters: Sequence[str]) -> dict[str, np.ndarray]:
    """The canary's log-probabilities under each adapter, all in one batch."""
    got = await asyncio.gather(*(engine_logprobs(engine, ids, adapter) for adapter in adapters))
    return dict(zip(adapters, got, strict=True))


def largest(got: Logprobs, expected: Logprobs) -> list[float]:
    """Over the adapters of a batch: the largest of the largest differences and of the mean ones."""
    return [max(each) for each in zip(*(apart(one, expected[name]) for name, one in got.items()), strict=True)]


async def engine_logprobs(engine: Engine, ids: list[int], adapter: str) -> np.ndarray:
    return np.asarray(await engine.prompt_logprobs(ids, adapter), dtype=np.float32)


def apart(one: np.ndarray, other: np.ndarray) -> list[float]:
    """Largest and mean difference."""
    return [round(float(np.abs(one - other).max()), 6), round(float(np.abs(one - other).mean()), 6)]


if __name__ == "__main__":
    main()
