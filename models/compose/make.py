"""Makes the base model of the composition task from generated text: a tokenizer, then a small Qwen3 trained on chat transcripts.

    python models/compose/make.py [--out models/compose] [--seed 0]

Transcripts are of two kinds. A program of one letter is answered rightly. A program of three or four letters is answered with a
chain of functions of any number and order, each applied rightly; chains that end with the program's result are redrawn. Programs of two
letters do not occur. So the model comes to know every function, and how functions follow each other, but not that the program says which.
"""

import argparse
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from env_svc.builtin.compose import FILLER, FUNCTIONS, LETTERS, MAX_PROGRAM, question, random_word, run, solution

PAD, UNKNOWN, END = "<|pad|>", "<|unknown|>", "<|end|>"
ROLES = ["<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|{{ message.role }}|>{{ message.content or '' }}<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""
MAX_LENGTH_TOKENS = 128
VOCABULARY_ROWS = 32

STEPS = 1600
BATCH_SIZE = 128
PEAK_LR = 4e-3
WARMUP_STEPS = 50
SINGLE_SHARE = 0.5
"""Share of the transcripts that are programs of one letter."""
NAMED_SHARE = 0.5
"""Share of a chain's functions that are drawn from its program, in any order; the others from all functions."""
MAX_CHAIN = 4


@dataclass(frozen=True)
class Transcript:
    question: str
    reply: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help="fewer make a model that is for trying out only")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    tokenizer = make_tokenizer()
    model = new_model(tokenizer)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    train(model, tokenizer, random.Random(options.seed), options.steps)
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)


def write_transcript(rng: random.Random) -> Transcript:
    """One question and its reply; only programs of one letter are answered rightly."""
    word = random_word(rng)
    if rng.random() < SINGLE_SHARE:
        program = rng.choice(list(FUNCTIONS))
        return Transcript(question(program, word), solution(program, word))
    program = "".join(rng.choices(list(FUNCTIONS), k=rng.randint(3, MAX_PROGRAM)))
    chain = random_chain(rng, program)
    while run(chain, word) == run(program, word):
        chain = random_chain(rng, program)
    return Transcript(question(program, word), solution(chain, word))


def random_chain(rng: random.Random, program: str) -> str:
    return "".join(
        rng.choice(program) if rng.random() < NAMED_SHARE else rng.choice(list(FUNCTIONS)) for _ in range(rng.randint(1, MAX_CHAIN))
    )


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each character of questions and replies, and for each mark of the chat template."""
    words = [PAD, UNKNOWN, END, *ROLES, *FUNCTIONS, *LETTERS, FILLER, " "]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        additional_special_tokens=ROLES,
        model_max_length=MAX_LENGTH_TOKENS,
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = CHAT_TEMPLATE
    return made


def new_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """An untrained Qwen3 of 0.45 M parameters, float32."""
    config = Qwen3Config(
        vocab_size=VOCABULARY_ROWS,
        hidden_size=96,
        intermediate_size=256,
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


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, rng: random.Random, steps: int) -> None:
    """Trains in place; prints the loss (nats per token of replies) periodically."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.01)
    started = time.monotonic()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LR * learning_rate_share(step, steps)
        loss = reply_loss(model, tokenizer, [write_transcript(rng) for _ in range(BATCH_SIZE)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step} loss {loss.item():.4f} seconds {time.monotonic() - started:.0f}", flush=True)


def learning_rate_share(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to a hundredth, in [0, 1]."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * (0.01 + 0.99 * (1 + math.cos(math.pi * step / steps)) / 2)


def reply_loss(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, transcripts: list[Transcript]) -> Tensor:
    """Mean cross-entropy of the replies' tokens, their end included, in nats."""
    chats = [[{"role": "user", "content": one.question}, {"role": "assistant", "content": one.reply}] for one in transcripts]
    rows = tokenizer([tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats], add_special_tokens=False)["input_ids"]
    starts = [len(row) - len(one.reply) - 1 for row, one in zip(rows, transcripts, strict=True)]
    width = max(map(len, rows))
    ids_B_T = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows])
    said_B_T = torch.tensor([[start <= place < len(row) for place in range(width)] for start, row in zip(starts, rows, strict=True)])[:, 1:]
    hidden_B_T_D = model.model(input_ids=ids_B_T, use_cache=False).last_hidden_state[:, :-1]
    return cross_entropy(model.lm_head(hidden_B_T_D[said_B_T]), ids_B_T[:, 1:][said_B_T])


if __name__ == "__main__":
    main()
