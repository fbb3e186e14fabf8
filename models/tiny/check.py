"""Evaluates a base model: its reward on every question set at version 0, and after plain GRPO with LoRA. Without services.

python models/tiny/check.py                                        # version 0 alone: sampled and greedy
python models/tiny/check.py --sets letters lcm --steps 30 --seeds 0 1 2 --rank 8 --lr 2e-3
    python models/tiny/check.py --sets gcd --options max_value=12      # a narrower task than the model was made for
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from tasks import QUESTION_SETS, Item, QuestionSet
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase, Qwen3ForCausalLM

TARGET_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ALPHA_PER_RANK = 2
CLIP_NORM = 1.0
WINDOW_STEPS = 5


@dataclass(frozen=True)
class GRPOPlan:
    """Parameters of one GRPO run, beside its question set and seed."""

    steps: int
    groups: int
    group_size: int
    max_tokens: int
    rank: int
    lr: float


@dataclass(frozen=True)
class Rollouts:
    """Shapes: ids_B_T (B, T) int64, prompt left-padded; mask_B_T (B, T) int64, 1 on real tokens; said_B_T (B, T) bool, true on sampled
    ones; replies and rewards of length B."""

    ids_B_T: Tensor
    mask_B_T: Tensor
    said_B_T: Tensor
    replies: list[str]
    rewards_B: Tensor


class Player:
    """A model that answers the items of one question set."""

    def __init__(self, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, questions: QuestionSet, max_tokens: int) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self._scorer = questions.source(seed=0, size=1)

    @torch.no_grad()
    def play(self, items: list[Item], greedy: bool = False) -> Rollouts:
        """One reply to each item, at temperature 1 or greedy."""
        chats = [[{"role": "user", "content": item.question}] for item in items]
        prompts = self.tokenizer.apply_chat_template(
            chats,
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
            padding=True,
            tokenizer_kwargs={"padding_side": "left"},
        )
        width = prompts["input_ids"].shape[1]
        ids_B_T = self.model.generate(**prompts, max_new_tokens=self.max_tokens, do_sample=not greedy)
        ended_B_T = (ids_B_T[:, width:] == self.tokenizer.eos_token_id).long()
        said_B_T = torch.zeros_like(ids_B_T, dtype=torch.bool)
        said_B_T[:, width:] = ended_B_T.cumsum(1) - ended_B_T == 0
        mask_B_T = said_B_T.long()
        mask_B_T[:, :width] = prompts["attention_mask"]
        said = [ids[mask].tolist() for ids, mask in zip(ids_B_T, said_B_T, strict=True)]
        replies = self.tokenizer.batch_decode(said, skip_special_tokens=True)
        scores = [self._scorer.score_answer(answer=reply.strip(), entry=item.entry) for reply, item in zip(replies, items, strict=True)]
        return Rollouts(ids_B_T, mask_B_T, said_B_T, replies, torch.tensor(scores))


def grpo(player: Player, questions: QuestionSet, plan: GRPOPlan, seed: int) -> list[float]:
    """The mean reward of each step; every step asks fresh questions. Trains `player.model` in place."""
    torch.manual_seed(seed)
    items = questions.items(seed=1000 * (seed + 1), size=plan.steps * plan.groups)
    optimizer = torch.optim.AdamW([p for p in player.model.parameters() if p.requires_grad], lr=plan.lr, weight_decay=0.0)
    curve: list[float] = []
    for step in range(plan.steps):
        asked = items[step * plan.groups : (step + 1) * plan.groups]
        rollouts = player.play([item for item in asked for _ in range(plan.group_size)])
        rewards_P_G = rollouts.rewards_B.view(plan.groups, plan.group_size)
        advantages_B = (rewards_P_G - rewards_P_G.mean(1, keepdim=True)).flatten()
        policy_loss(player.model, rollouts, advantages_B).backward()
        torch.nn.utils.clip_grad_norm_(player.model.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        curve.append(rollouts.rewards_B.mean().item())
    return curve


def policy_loss(model: torch.nn.Module, rollouts: Rollouts, advantages_B: Tensor) -> Tensor:
    """Policy gradient of on-policy rollouts, per sampled token.

    Shapes: advantages_B (B,) float32 → scalar. On-policy the importance ratio is 1, so clipping has nothing to clip.
    """
    positions_B_T = (rollouts.mask_B_T.cumsum(1) - 1).clamp(min=0)
    logits_B_T_V = model(input_ids=rollouts.ids_B_T, attention_mask=rollouts.mask_B_T, position_ids=positions_B_T).logits[:, :-1]
    logprobs_B_T = logits_B_T_V.log_softmax(-1).gather(-1, rollouts.ids_B_T[:, 1:, None])[..., 0]
    said_B_T = rollouts.said_B_T[:, 1:]
    return -(logprobs_B_T * advantages_B[:, None])[said_B_T].sum() / said_B_T.sum()


def report_version_0(player: Player, questions: QuestionSet, size: int) -> None:
    """Prints one line: mean reward sampled and greedy, the share of fully right replies, and some replies."""
    items = questions.items(seed=500_000, size=size)
    sampled, greedy = player.play(items), player.play(items, greedy=True)
    exact = (sampled.rewards_B == 1).float().mean()
    means = f"sampled {sampled.rewards_B.mean():.3f} (exact {exact:.3f}) greedy {greedy.rewards_B.mean():.3f}"
    examples = [f"{item.answer}→{reply}" for item, reply in zip(items[:6], sampled.replies, strict=False)]
    print(f"{questions.dataset} {questions.options}\n  version 0: {means}  {examples}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path(__file__).parent)
    parser.add_argument("--sets", nargs="+", choices=QUESTION_SETS, default=list(QUESTION_SETS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--options", nargs="+", default=[], help="dataset options instead of those of tasks.py, key=value")
    parser.add_argument("--size", type=int, default=512, help="questions for version 0")
    parser.add_argument("--threads", type=int, default=2)
    for name, default in {"steps": 0, "groups": 16, "group-size": 8, "max-tokens": 16, "rank": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=2e-3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    plan = GRPOPlan(options.steps, options.groups, options.group_size, options.max_tokens, options.rank, options.lr)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    narrower = {key: json.loads(value) for key, _, value in (option.partition("=") for option in options.options)}
    for name in options.sets:
        questions = replace(QUESTION_SETS[name], options=QUESTION_SETS[name].options | narrower)
        base = AutoModelForCausalLM.from_pretrained(options.model)
        report_version_0(Player(base, tokenizer, questions, plan.max_tokens), questions, options.size)
        for seed in options.seeds if plan.steps else []:
            torch.manual_seed(seed)
            lora = LoraConfig(r=plan.rank, lora_alpha=ALPHA_PER_RANK * plan.rank, target_modules=TARGET_MODULES, task_type="CAUSAL_LM")
            model = get_peft_model(AutoModelForCausalLM.from_pretrained(options.model), lora)
            started = time.monotonic()
            curve = grpo(Player(model, tokenizer, questions, plan.max_tokens), questions, plan, seed)
            first, last = statistics.mean(curve[:WINDOW_STEPS]), statistics.mean(curve[-WINDOW_STEPS:])
            pace_s = (time.monotonic() - started) / plan.steps
            rewards = " ".join(f"{reward:.2f}" for reward in curve)
            print(f"  seed {seed}: {first:.3f} → {last:.3f} ({last - first:+.3f}), {pace_s:.2f} s a step  {rewards}", flush=True)


if __name__ == "__main__":
    main()
