"""Answers of a model to the questions of every split: greedy, and sampled on held-out programs. The same questions for all models.

In float32 with transformers and PEFT, so that nothing depends on the project's sampler or trainer. Questions are those of a seed that no
task trains with.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.harness.load.replies import replies
from env_svc.builtin.compose import Compose, ComposeState, Split, run
from env_svc.contract import Finish, Opening

SEED = 1_000_000
MAX_TOKENS = 16
"""New tokens of a reply: a program of three functions needs 15 and the end."""
BATCH_SIZE = 512
SHOWN_REPLIES = 3
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True)
class Sizes:
    """Number of questions of each split, and of sampled attempts at each held-out one."""

    prompts: int = 200
    attempts: int = 64


@dataclass(frozen=True)
class Answers:
    """Graded answers. Shapes: greedy: split → (P,) of 0 and 1; sampled: (P,) right ones among the attempts at each held-out question."""

    greedy: dict[str, list[int]]
    sampled: list[int]
    attempts: int
    replies: list[list[str]]
    """Question, greedy reply and right result of the first held-out questions."""


def evaluate(base: Path, adapter: Path | None, sizes: Sizes) -> Answers:
    """Answers of the base model in folder `base`, with a PEFT adapter where one is given."""
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter)).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(base, padding_side="left")
    torch.manual_seed(SEED)
    openings = {split: asyncio.run(questions(split, sizes.prompts)) for split in SPLITS}
    greedy = {split: graded(model, tokenizer, asked, greedy=True) for split, asked in openings.items()}
    found = graded(model, tokenizer, openings["held_out"] * sizes.attempts, greedy=False)
    sampled = [sum(found[row :: sizes.prompts]) for row in range(sizes.prompts)]
    return Answers(greedy, sampled, sizes.attempts, shown(model, tokenizer, openings["held_out"][:SHOWN_REPLIES]))


async def questions(split: Split, prompts: int) -> list[Opening[ComposeState]]:
    environment = Compose(split=split)
    return [await environment.open(row, SEED) for row in range(prompts)]


def graded(model: Any, tokenizer: Any, openings: list[Opening[ComposeState]], *, greedy: bool) -> list[int]:
    """1 for each right reply, else 0."""
    environment = Compose()
    found = list[int]()
    for first in range(0, len(openings), BATCH_SIZE):
        some = openings[first : first + BATCH_SIZE]
        for opening, reply in zip(some, replies(model, tokenizer, [one.messages for one in some], MAX_TOKENS, greedy=greedy), strict=True):
            turn = asyncio.run(environment.step(opening.state, reply))
            assert isinstance(turn, Finish)
            found.append(int(turn.reward))
    return found


def shown(model: Any, tokenizer: Any, openings: list[Opening[ComposeState]]) -> list[list[str]]:
    said = replies(model, tokenizer, [one.messages for one in openings], MAX_TOKENS, greedy=True)
    asked = [one.messages[0].content for one in openings]
    return [[question, reply.text, run(**one.state)] for question, reply, one in zip(asked, said, openings, strict=True)]
