"""Makes the demo's tiny base model from generated text: a tokenizer, then a small Qwen3 trained on chat transcripts.

    python models/tiny/make.py [--out models/tiny] [--seed 0]      # every stage, from nothing
    python models/tiny/make.py --start FOLDER --stages doubts      # some stages, on an earlier run's model

Training answers are right at first; then the share of wrong ones rises to that of `tasks.py` and `transcripts.py`, so that the
finished model knows the answers but does not always give them.
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
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from vocabulary import CHAT_TEMPLATE, MAX_LENGTH_TOKENS, VOCABULARY_SIZE, train_tokenizer

POOL_SIZE = 20_000
BATCHES_PER_CHUNK = 32
TEXTS_PER_QUESTION_SET = 200
# A merge must occur in about every second question of one set: template wording qualifies, numbers and words asked about do not.
MERGE_MIN_FREQUENCY = 100


@dataclass(frozen=True)
class TrainingStage:
    """One training run: a fresh optimizer, and a learning rate that rises and falls."""

    steps: int
    batch_size: int
    peak_lr: float
    calculator_share: float  # of the transcripts; the others are questions
    questions_doubted_from: float  # the share of the stage after which wrong answers begin
    calls_doubted: bool = False


STAGES = {
    "questions": TrainingStage(2000, 128, 4e-3, calculator_share=0.0, questions_doubted_from=0.75),
    "calls": TrainingStage(600, 64, 2e-3, calculator_share=0.5, questions_doubted_from=0.0),
    "copies": TrainingStage(1200, 32, 2e-3, calculator_share=0.8, questions_doubted_from=0.0),
    "review": TrainingStage(224, 64, 1.5e-3, calculator_share=0.3, questions_doubted_from=1.0),
    "doubts": TrainingStage(160, 64, 5e-4, calculator_share=0.35, questions_doubted_from=0.0, calls_doubted=True),
}
WARMUP_SHARE = 0.05


@dataclass(frozen=True)
class Batch:
    """Shapes: ids_B_T (B, T) int64, right-padded; labels_B_T (B, T) int64, -100 where the assistant does not speak."""

    ids_B_T: Tensor
    labels_B_T: Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--start", type=Path, help="a model to continue from")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-compile", action="store_true", help="slower steps, but no C++ compiler and no wait for it")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    author = Author(options.seed, POOL_SIZE)
    if options.start is None:
        tokenizer = train_tokenizer(tokenizer_texts(author), MERGE_MIN_FREQUENCY)
        model = new_model(tokenizer)
    else:
        tokenizer, model = AutoTokenizer.from_pretrained(options.start), AutoModelForCausalLM.from_pretrained(options.start)
        tokenizer.chat_template = CHAT_TEMPLATE
        for name in ("is_local", "local_files_only"):  # how it was loaded, which would be saved with it
            tokenizer.init_kwargs.pop(name, None)
    check_template(tokenizer, author)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    if not options.no_compile:
        model.model.compile(dynamic=True)  # a minute and a half to compile, then 1.6 times as fast
    for name in options.stages:
        print(name, flush=True)
        train(model, tokenizer, author, STAGES[name])
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)


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
    dialogues = [calculation(author.rng, 0.0) for _ in range(TEXTS_PER_QUESTION_SET * 2)]
    return asked + ["".join(text for text, _ in pieces(dialogue)) for dialogue in dialogues]


def check_template(tokenizer: PreTrainedTokenizerFast, author: Author) -> None:
    """Fails unless training text is, token for token, what the chat template gives at run time."""
    for transcript in [author.write(0.5, 1.0, 1.0) for _ in range(100)]:
        tools = [CALCULATOR] if transcript.tools else None
        rendered = tokenizer.apply_chat_template(transcript.messages, tools=tools, tokenize=False)
        if rendered != "".join(text for text, _ in pieces(transcript)):
            raise AssertionError(f"chat template and training text differ: {rendered!r}")
        if tokenizer.encode(rendered) != [token for text, _ in pieces(transcript) for token in tokenizer.encode(text)]:
            raise AssertionError(f"the cut changes the tokens of {rendered!r}")


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, author: Author, stage: TrainingStage) -> None:
    """Trains in place; prints the loss (nats per assistant token) periodically."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=stage.peak_lr, betas=(0.9, 0.98), weight_decay=0.05)
    started = time.monotonic()
    for step, batch in enumerate(itertools.islice(batches(tokenizer, author, stage), stage.steps)):
        for group in optimizer.param_groups:
            group["lr"] = stage.peak_lr * learning_rate_share(step, stage)
        loss = reply_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f} seconds {time.monotonic() - started:.0f}", flush=True)


def reply_loss(model: Qwen3ForCausalLM, batch: Batch) -> Tensor:
    """Mean cross-entropy of the assistant's tokens, nats; logits are computed at those positions alone."""
    hidden_B_T_D = model.model(input_ids=batch.ids_B_T, use_cache=False).last_hidden_state[:, :-1]
    targets_B_T = batch.labels_B_T[:, 1:]
    said_B_T = targets_B_T != -100
    return cross_entropy(model.lm_head(hidden_B_T_D[said_B_T]), targets_B_T[said_B_T])


def learning_rate_share(step: int, stage: TrainingStage) -> float:
    """Linear warm-up, then a cosine down to a twentieth, in [0, 1]."""
    if step < WARMUP_SHARE * stage.steps:
        return (step + 1) / (WARMUP_SHARE * stage.steps)
    return 0.05 + 0.95 * (1 + math.cos(math.pi * step / stage.steps)) / 2


def batches(tokenizer: PreTrainedTokenizerFast, author: Author, stage: TrainingStage) -> Iterator[Batch]:
    """Endless batches; within a chunk, transcripts of like length share a batch, to waste little on padding."""
    for chunk in itertools.count():
        doubted = chunk * BATCHES_PER_CHUNK >= stage.questions_doubted_from * stage.steps
        wrongness = float(doubted), float(stage.calls_doubted)
        transcripts = [author.write(stage.calculator_share, *wrongness) for _ in range(BATCHES_PER_CHUNK * stage.batch_size)]
        rows = sorted(encoded(tokenizer, transcripts), key=lambda row: len(row[0]))
        starts = list(range(0, len(rows), stage.batch_size))
        author.rng.shuffle(starts)
        for start in starts:
            yield padded(rows[start : start + stage.batch_size], tokenizer.pad_token_id)


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
