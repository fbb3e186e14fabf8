"""Makes the tiny base model of the demo from generated text alone: tokenizer, then a small Qwen3 trained on chat transcripts.

    python models/tiny/make.py [--out models/tiny] [--seed 0] [--steps 2000]

First the answers are all right; then the share of wrong ones rises to that of `tasks.py`, so that the finished model knows the answers
but does not always say them.
"""

import argparse
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tasks import QUESTION_SETS
from torch import Tensor
from torch.nn.functional import cross_entropy
from transcripts import CALCULATOR, Author, Transcript, calculation, pieces
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from vocabulary import MAX_LENGTH_TOKENS, VOCABULARY_SIZE, train_tokenizer

POOL_SIZE = 20_000
BATCHES_PER_CHUNK = 64
WARMUP_STEPS = 100
TEXTS_PER_QUESTION_SET = 200
# A merge must occur in about every second question of one set: template wording qualifies, numbers and words asked about do not.
MERGE_MIN_FREQUENCY = 100


@dataclass(frozen=True)
class Recipe:
    """What the result depends on, beside the data."""

    seed: int
    steps: int
    batch_size: int
    peak_lr: float
    doubt_from: float  # the share of training after which wrong answers begin
    threads: int


@dataclass(frozen=True)
class Batch:
    """Shapes: ids_B_T (B, T) int64, right-padded; labels_B_T (B, T) int64, -100 where the assistant does not speak."""

    ids_B_T: Tensor
    labels_B_T: Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--peak-lr", type=float, default=4e-3)
    parser.add_argument("--doubt-from", type=float, default=0.75)
    parser.add_argument("--threads", type=int, default=2)
    options = vars(parser.parse_args())
    out: Path = options.pop("out")
    recipe = Recipe(**options)
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    author = Author(recipe.seed, POOL_SIZE)
    tokenizer = train_tokenizer(tokenizer_texts(author), MERGE_MIN_FREQUENCY)
    check_template(tokenizer, author)
    model = new_model(tokenizer)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    train(model, tokenizer, author, recipe)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def new_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """An untrained Qwen3 of 0.85 M parameters, float32; special token ids come from the tokenizer."""
    config = Qwen3Config(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True, temperature=1.0, top_k=0, top_p=1.0
    )
    return model


def tokenizer_texts(author: Author) -> list[str]:
    """Some questions of each set, and as many calculator dialogues."""
    asked = [item.question for questions in QUESTION_SETS.values() for item in questions.items(0, TEXTS_PER_QUESTION_SET)]
    dialogues = [calculation(author.rng) for _ in range(TEXTS_PER_QUESTION_SET * 2)]
    return asked + ["".join(text for text, _ in pieces(dialogue)) for dialogue in dialogues]


def check_template(tokenizer: PreTrainedTokenizerFast, author: Author) -> None:
    """Fails unless training text is, token for token, what the chat template gives at run time."""
    for transcript in [author.write(1.0) for _ in range(100)]:
        tools = [CALCULATOR] if transcript.tools else None
        rendered = tokenizer.apply_chat_template(transcript.messages, tools=tools, tokenize=False)
        if rendered != "".join(text for text, _ in pieces(transcript)):
            raise AssertionError(f"chat template and training text differ: {rendered!r}")
        if tokenizer.encode(rendered) != [token for text, _ in pieces(transcript) for token in tokenizer.encode(text)]:
            raise AssertionError(f"the cut changes the tokens of {rendered!r}")


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, author: Author, recipe: Recipe) -> None:
    """Trains in place; prints the loss (nats per assistant token) now and then."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.peak_lr, betas=(0.9, 0.98), weight_decay=0.05)
    model.model.compile(dynamic=True)  # a minute and a half to compile, then 1.6 times as fast; needs a C++ compiler
    started = time.monotonic()
    for step, batch in enumerate(itertools.islice(batches(tokenizer, author, recipe), recipe.steps)):
        for group in optimizer.param_groups:
            group["lr"] = recipe.peak_lr * learning_rate_share(step, recipe.steps)
        loss = reply_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.3f} seconds {time.monotonic() - started:.0f}", flush=True)


def reply_loss(model: Qwen3ForCausalLM, batch: Batch) -> Tensor:
    """Mean cross-entropy of the assistant's tokens, nats; logits are computed at those positions alone."""
    hidden_B_T_D = model.model(input_ids=batch.ids_B_T, use_cache=False).last_hidden_state[:, :-1]
    targets_B_T = batch.labels_B_T[:, 1:]
    said_B_T = targets_B_T != -100
    return cross_entropy(model.lm_head(hidden_B_T_D[said_B_T]), targets_B_T[said_B_T])


def learning_rate_share(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to a twentieth, in [0, 1]."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    return 0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2


def batches(tokenizer: PreTrainedTokenizerFast, author: Author, recipe: Recipe) -> Iterator[Batch]:
    """Endless batches; within a chunk, transcripts of like length share a batch, to waste little on padding."""
    for chunk in itertools.count():
        doubted = chunk * BATCHES_PER_CHUNK >= recipe.doubt_from * recipe.steps
        transcripts = [author.write(float(doubted)) for _ in range(BATCHES_PER_CHUNK * recipe.batch_size)]
        rows = sorted(encoded(tokenizer, transcripts), key=lambda row: len(row[0]))
        starts = list(range(0, len(rows), recipe.batch_size))
        author.rng.shuffle(starts)
        for start in starts:
            yield padded(rows[start : start + recipe.batch_size], tokenizer.pad_token_id)


def encoded(tokenizer: PreTrainedTokenizerFast, transcripts: list[Transcript]) -> Iterator[tuple[list[int], list[int]]]:
    """(token ids, labels) of each transcript; labels are -100 outside the assistant's own words."""
    cut = [pieces(transcript) for transcript in transcripts]
    tokens = iter(tokenizer([text for part in cut for text, _ in part], add_special_tokens=False)["input_ids"])
    for part in cut:
        ids: list[int] = []
        labels: list[int] = []
        for _, own in part:
            piece = next(tokens)
            ids += piece
            labels += piece if own else [-100] * len(piece)
        yield ids, labels


def padded(rows: list[tuple[list[int], list[int]]], pad_id: int) -> Batch:
    """Rows made equally long on the right; causal attention needs no mask for that."""
    width = max(len(ids) for ids, _ in rows)
    ids_B_T = torch.tensor([ids + [pad_id] * (width - len(ids)) for ids, _ in rows])
    labels_B_T = torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in rows])
    return Batch(ids_B_T, labels_B_T)


if __name__ == "__main__":
    main()
