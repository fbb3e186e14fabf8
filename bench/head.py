"""Mismatch of sampler and trainer by the precision of their logits: `python -m bench.head`. Writes bench/results/head.json.

The tiny base model in bfloat16 answers prompts of the demo's tasks on a real engine, once with head `model` and once with `float32`; the
trainer computes the log-probabilities of the same tokens with each. `mismatch` is `sampler_mismatch` of a step: half the mean squared
difference, in nats. Where both use the same head, it is a pool's; the other two pairs show what a silent difference would cost.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from typing import Any

import llvmlite.binding  # noqa: F401  # pyright: ignore[reportUnusedImport]  vLLM must start beside it: see rollout_svc/engine/cpu/platform.py
import numpy as np
import torch
from transformers import AutoTokenizer

from bench.harness import report
from common.pools import Pool, read_pools
from env_svc.registry import build
from marlaas.demo import demo_tasks
from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.engine import Engine, Sampled, SampleRequest
from trainer_svc.model.packing import Row, Sample, collate
from trainer_svc.model.policy import NO_ADAPTER, Adapted, Policy, choose_device

HEADS = ("model", "float32")


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    machine = report.machine()
    pool = read_pools(report.ROOT / "pools.toml")["tiny"].model_copy(update={"precision": "bfloat16"})
    prompts = asyncio.run(encoded_prompts(pool, args.prompts))
    policies = {head: Policy.load(pool.model, choose_device(args.device), "bfloat16", head) for head in HEADS}  # type: ignore[arg-type]
    rows: list[dict[str, Any]] = []
    for sampler in HEADS:
        answers = asyncio.run(sampled(pool.model_copy(update={"head": sampler}), args.device, prompts, args.tokens))
        for trainer, policy in policies.items():
            rows.append({"sampler": sampler, "trainer": trainer} | compared(policy, prompts, answers))
            print(json.dumps(rows[-1]), flush=True)
    measured = ["common", "models/tiny", "rollout_svc", "trainer_svc"]
    print(f"written: {report.write(args.name, {'machine': machine, 'prompts': len(prompts), 'rows': rows}, measured)}")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=64, help="of each task")
    parser.add_argument("--tokens", type=int, default=16, help="maximum of each answer")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--name", default="head", help="of the file in bench/results")
    return parser.parse_args(argv)


async def encoded_prompts(pool: Pool, count: int) -> list[list[int]]:
    """The first prompts of each of the demo's tasks, as token ids."""
    tokenizer: Any = AutoTokenizer.from_pretrained(pool.model)
    found: list[list[int]] = []
    for spec in demo_tasks(report.ROOT / "examples", 0, None):
        environment = build(spec.environment.name, dict(spec.environment.options))
        for row in range(count):
            chat = [message.model_dump(exclude_none=True) for message in (await environment.open(row, spec.seed)).messages]
            text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
            found.append(tokenizer(text, add_special_tokens=False)["input_ids"])
    return found


async def sampled(pool: Pool, device: str, prompts: Sequence[list[int]], tokens: int) -> list[Sampled]:
    """An answer to each prompt at temperature 1."""
    engine = await Engine.start(EngineSettings.of(pool, device=device, cores=(0,) if device == "cpu" else ()))  # type: ignore[arg-type]
    try:
        requests = [
            SampleRequest(f"head:{number}", ids, max_tokens=tokens, temperature=1.0, seed=number, stop_ids=[2], adapter=None)
            for number, ids in enumerate(prompts)
        ]
        return list(await asyncio.gather(*(engine.sample(request) for request in requests)))
    finally:
        engine.process.close()


def compared(policy: Policy, prompts: Sequence[list[int]], answers: Sequence[Sampled]) -> dict[str, float]:
    """Differences between the sampler's log-probabilities and the policy's, over all sampled tokens."""
    differences: list[np.ndarray] = []
    nothing = Adapted(NO_ADAPTER, torch.zeros(0, device=policy.device))
    for prompt, answer in zip(prompts, answers, strict=True):
        mask_T = np.repeat([0, 1], [len(prompt), len(answer.ids)]).astype(np.uint8)
        logprobs_T = np.concatenate([np.zeros(len(prompt)), answer.logprobs]).astype(np.float32)
        sample = Sample(np.array([*prompt, *answer.ids], np.int32), mask_T, logprobs_T, 0.0, 0.0)
        with torch.no_grad():
            found_N = policy.scores(collate([(0, Row(sample.input_tokens, (sample,)))]), [nothing]).logprobs_N
        differences.append(found_N.cpu().numpy() - logprobs_T[mask_T == 1])
    apart_N = np.concatenate(differences).astype(np.float64)
    return {"tokens": len(apart_N), "mismatch": float(np.square(apart_N).mean() / 2), "mean": float(np.abs(apart_N).mean())}


if __name__ == "__main__":
    main()
