"""Log-probabilities of sampled replies: the engine's against those of transformers and PEFT, with and without an adapter."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from common.messages import ChatMessage
from common.pools import Pool
from rollout_svc.engine import Engine, Sampled, SampleRequest
from rollout_svc.engine_config import EngineSettings

BASE = "base"


@dataclass(frozen=True)
class Replies:
    """One model's replies to the same prompts. Shapes: ids_P: P prompts of token ids; sampled_P: replies at temperature 1."""

    ids_P: list[list[int]]
    sampled_P: list[Sampled]
    greedy_P: list[str]
    """Texts of the greedy replies."""


def of_engine(
    pool: Pool, adapters: Mapping[str, Path], prompts: Sequence[Sequence[ChatMessage]], max_tokens: int, seed: int
) -> dict[str, Replies]:
    """Replies of the base model and under each adapter, from one engine on a CPU."""
    return asyncio.run(_of_engine(pool, adapters, prompts, max_tokens, seed))


async def _of_engine(
    pool: Pool, adapters: Mapping[str, Path], prompts: Sequence[Sequence[ChatMessage]], max_tokens: int, seed: int
) -> dict[str, Replies]:
    tokenizer: Any = AutoTokenizer.from_pretrained(pool.model)
    ids_P = [_prompt_ids(tokenizer, messages) for messages in prompts]
    engine = await Engine.start(EngineSettings.of(pool, device="cpu"))

    async def replied(adapter: str | None, temperature: float) -> list[Sampled]:
        requests = [
            SampleRequest(
                request_id=f"{adapter}:{temperature:g}:{place}",
                ids=ids,
                max_tokens=max_tokens,
                temperature=temperature,
                seed=seed + place,
                stop_ids=[tokenizer.eos_token_id],
                adapter=adapter,
            )
            for place, ids in enumerate(ids_P)
        ]
        return list(await asyncio.gather(*map(engine.sample, requests)))

    try:
        for name, folder in adapters.items():
            await engine.load(name, folder)
        found = dict[str, Replies]()
        for name in (BASE, *adapters):
            adapter = name if name in adapters else None
            greedy = await replied(adapter, 0.0)
            texts = [str(tokenizer.decode(one.ids, skip_special_tokens=True)) for one in greedy]
            found[name] = Replies(ids_P, await replied(adapter, 1.0), texts)
        return found
    finally:
        engine.close()


def differences(base: Path | str, adapters: Mapping[str, Path], replies: Mapping[str, Replies]) -> dict[str, dict[str, float]]:
    """Absolute differences in nats between the engine's log-probabilities and those of transformers and PEFT, in float32, by model.

    `moved` is the mean absolute difference that the adapter makes to the same tokens, so that an adapter without effect shows.
    """
    found = dict[str, dict[str, float]]()
    for name, one in replies.items():
        model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
        plain_T = _logprobs(model, one)
        peft_T = plain_T
        if name in adapters:
            peft_T = _logprobs(PeftModel.from_pretrained(model, str(adapters[name])).eval(), one)
        engine_T = np.concatenate([reply.logprobs for reply in one.sampled_P])
        apart_T = np.abs(engine_T - peft_T)
        found[name] = {
            "tokens": len(engine_T),
            "mean": float(apart_T.mean()),
            "max": float(apart_T.max()),
            "moved": round(float(np.abs(peft_T - plain_T).mean()), 4),
        }
    return found


def _logprobs(model: Any, replies: Replies) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Log-probabilities of all sampled tokens, one reply after the other. Shape: (T,)."""
    found: list[torch.Tensor] = []
    for ids, reply in zip(replies.ids_P, replies.sampled_P, strict=True):
        with torch.no_grad():
            logits_T_V = model(input_ids=torch.tensor([ids + reply.ids])).logits[0, len(ids) - 1 : -1]
        found.append(logits_T_V.double().log_softmax(-1).gather(1, torch.tensor(reply.ids)[:, None])[:, 0])
    return torch.cat(found).numpy()


def _prompt_ids(tokenizer: Any, messages: Sequence[ChatMessage]) -> list[int]:
    chat = [message.model_dump(exclude_none=True) for message in messages]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
