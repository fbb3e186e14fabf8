"""`python -m tests.rollout.precision`: how far an engine in bfloat16 is from the trainer's canary, as JSON. An engine of its own."""

import asyncio
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import llvmlite.binding  # noqa: F401  # pyright: ignore[reportUnusedImport]  vLLM must start beside it: see rollout_svc/cpu_platform.py
import numpy as np
import torch

from common.pools import Pool, read_pools
from common.spec import Lora
from rollout_svc.engine import Engine, EngineSettings
from trainer_svc.adapter import initial_adapter, write_adapter
from trainer_svc.packing import Row, collate
from trainer_svc.policy import Adapted, Policy, canary_sample

POOL = read_pools(Path(__file__).parents[2] / "pools.toml")["tiny"].model_copy(update={"precision": "bfloat16"})
SIZES = {"small": 0.02, "large": 0.05}


async def differences(pool: Pool) -> dict[str, object]:
    """Largest and mean difference for each adapter, and for the one adapter under the other's canary."""
    policy = Policy.load(pool.model, torch.device("cpu"), pool.precision)
    layout, fresh = initial_adapter(Lora(rank=8), 0, policy.layers)
    sample = canary_sample(policy.vocabulary)
    packed = collate([(0, Row(sample.input_tokens, (sample,)))])
    engine = await Engine.start(replace(EngineSettings.of(pool, device="cpu", cores=(0,)), adapters=2, adapters_held=2))
    expected, got = dict[str, np.ndarray](), dict[str, np.ndarray]()
    try:
        for name, size in SIZES.items():
            vector = torch.randn(fresh.shape, generator=torch.Generator().manual_seed(1)) * size
            with tempfile.TemporaryDirectory() as folder, torch.no_grad():
                write_adapter(Path(folder) / name, layout, vector, policy.dtype)
                expected[name] = policy.scores(packed, [Adapted(layout, vector)]).logprobs_N.float().numpy()
                await engine.load(name, Path(folder) / name)
                got[name] = np.asarray(await engine.prompt_logprobs(sample.ids_T.tolist(), name), dtype=np.float32)
    finally:
        engine.close()
    allowed = engine.canary_tolerance
    found = {name: _apart(got[name], expected[name]) for name in SIZES}
    return {"allowed": [allowed.most, allowed.mean], "own": found, "other": _apart(got["large"], expected["small"])}


def _apart(one: np.ndarray, other: np.ndarray) -> list[float]:
    return [float(np.abs(one - other).max()), float(np.abs(one - other).mean())]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(differences(POOL))))
