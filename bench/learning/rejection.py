"""Rejection fine-tuning on as many sampled attempts as a run of RL has: the base model's right replies, learned by cross-entropy.

The attempts are at the same prompts, and sampled from the base model; those with reward 1 are kept. Then as many optimizer steps as RL has,
with the same adapter shape, rate and clipping, each on as many replies as RL trains attempts in a step: a prompt is drawn among those that
have a right reply, and one of its right replies. Without the stack, in transformers and PEFT, because no task has such a loss.
"""

import asyncio
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.harness.load.replies import replies
from bench.learning.evaluation import BATCH_SIZE
from common.messages import ChatMessage
from common.spec import TaskSpec
from env_svc.builtin.compose import Compose
from env_svc.contract import Finish


@dataclass(frozen=True)
class Kept:
    """A right reply: token ids of the whole conversation, and the place where the reply begins."""

    ids: list[int]
    start: int


def train(base: Path, spec: TaskSpec, adapter: Path) -> dict[str, Any]:
    """Write the trained adapter to `adapter`; returns what was kept, and the loss of each step."""
    started = time.monotonic()
    torch.manual_seed(spec.seed)
    rng = random.Random(spec.seed)
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(base, padding_side="left")
    kept, sampled_tokens = sampled(model, tokenizer, spec)
    lora = LoraConfig(r=spec.lora.rank, lora_alpha=int(spec.lora.alpha), target_modules=list(spec.lora.targets), task_type="CAUSAL_LM")
    model = get_peft_model(model, lora)
    params = [param for param in model.parameters() if param.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=spec.optimizer.learning_rate, weight_decay=spec.optimizer.weight_decay)
    losses: list[float] = []
    for _ in range(spec.steps):
        drawn = [rng.choice(right) for right in rng.choices(kept, k=spec.algorithm.group_size * spec.algorithm.groups_per_step)]
        loss = reply_loss(model, drawn, tokenizer.pad_token_id)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, spec.optimizer.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(round(loss.item(), 4))
    model.save_pretrained(str(adapter))
    took_s = round(time.monotonic() - started)
    counts = {"right_prompts": len(kept), "right_replies": sum(map(len, kept))}
    return counts | {"sampled_tokens": sampled_tokens, "losses": losses, "took_s": took_s}


def sampled(model: Any, tokenizer: Any, spec: TaskSpec) -> tuple[list[list[Kept]], int]:
    """Right replies to each prompt of all steps that has any, and the tokens that were sampled for them."""
    environment = Compose(**spec.environment.options)  # type: ignore[arg-type]
    rows = range(spec.steps * spec.algorithm.groups_per_step)
    openings = [asyncio.run(environment.open(row, spec.seed)) for row in rows]
    kept: dict[int, list[Kept]] = {}
    tokens = 0
    together = max(1, BATCH_SIZE // spec.algorithm.group_size)
    for first in range(0, len(openings), together):
        some = [row for row in rows[first : first + together] for _ in range(spec.algorithm.group_size)]
        said = replies(model, tokenizer, [openings[row].messages for row in some], spec.sampling.max_tokens, greedy=False)
        for row, reply in zip(some, said, strict=True):
            tokens += len(reply.text) + (not reply.truncated)
            turn = asyncio.run(environment.step(openings[row].state, reply))
            if isinstance(turn, Finish) and turn.reward == 1:
                kept.setdefault(row, []).append(_kept(tokenizer, openings[row].messages[0], reply.text))
    return list(kept.values()), tokens


def reply_loss(model: Any, batch: list[Kept], pad_id: int) -> torch.Tensor:
    """Mean cross-entropy of the replies' tokens, their end included, in nats."""
    width = max(len(one.ids) for one in batch)
    ids_B_T = torch.tensor([one.ids + [pad_id] * (width - len(one.ids)) for one in batch])
    said_B_T = torch.tensor([[one.start <= place < len(one.ids) for place in range(width)] for one in batch])[:, 1:]
    logits_B_T_V = model(input_ids=ids_B_T).logits[:, :-1]
    return cross_entropy(logits_B_T_V[said_B_T], ids_B_T[:, 1:][said_B_T])


def _kept(tokenizer: Any, question: ChatMessage, text: str) -> Kept:
    chat = [{"role": "user", "content": question.content}]
    opened = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    start = tokenizer.encode(opened, add_special_tokens=False)
    return Kept(start + tokenizer.encode(text + tokenizer.eos_token, add_special_tokens=False), len(start))
