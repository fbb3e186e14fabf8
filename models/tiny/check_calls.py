"""Evaluates a base model's use of the calculator at version 0: well-formed calls, rightly copied expressions, final answers. No services.

python models/tiny/check_calls.py [--model models/tiny] [--size 512]
"""

import argparse
import random
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from transcripts import CALCULATOR, OPERATIONS, Expression, random_expression
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase, Qwen3ForCausalLM

CALL = re.compile(r"<calculator>(\d+) ([-+*]) (\d+)</calculator>")
MAX_TOKENS = 32
Conversation = list[dict[str, str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path(__file__).parent)
    parser.add_argument("--size", type=int, default=512, help="questions")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(options.model), AutoTokenizer.from_pretrained(options.model)
    rng = random.Random("questions that no training text was drawn for")
    asked = [random_expression(rng) for _ in range(options.size)]
    for greedy in (False, True):
        torch.manual_seed(0)
        print("greedy " if greedy else "sampled", report(model, tokenizer, asked, greedy), flush=True)


def report(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, asked: Sequence[Expression], greedy: bool) -> str:
    """Shares of all episodes, then some failures."""
    chats: list[Conversation] = [[{"role": "user", "content": f"What is {expression}?"}] for expression in asked]
    for chat, reply in zip(chats, replies(model, tokenizer, chats, greedy), strict=True):
        chat.append({"role": "assistant", "content": reply})
    called = [chat for chat in chats if CALL.fullmatch(chat[-1]["content"])]
    for chat in called:
        chat.append({"role": "tool", "content": str(entered(chat).value)})
    for chat, reply in zip(called, replies(model, tokenizer, called, greedy), strict=True):
        chat.append({"role": "assistant", "content": reply})
    copied = [chat for chat in called if f"What is {entered(chat)}?" == chat[0]["content"]]
    read = [chat for chat in called if chat[3]["content"] == chat[2]["content"]]
    right = [chat for chat, expression in zip(chats, asked, strict=True) if chat[-1]["content"] == str(expression.value)]
    shares = {"call": called, "copied": copied, "reward": right}
    text = " ".join(f"{name} {len(some) / len(chats):.3f}" for name, some in shares.items())
    wrong = [[message["content"] for message in chat] for chat in chats if chat not in right]
    return f"{text}, result repeated after {len(read) / max(1, len(called)):.3f} of calls\n  {wrong[:8]}"


def entered(chat: Conversation) -> Expression:
    """The calculator's input."""
    left, sign, right = CALL.fullmatch(chat[1]["content"]).groups()
    assert sign in OPERATIONS
    return Expression(int(left), sign, int(right))


@torch.no_grad()
def replies(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, chats: Sequence[Conversation], greedy: bool) -> list[str]:
    """One reply to each conversation, at temperature 1 or greedy."""
    if not chats:
        return []
    prompts = tokenizer.apply_chat_template(
        list(chats),
        tools=[CALCULATOR],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
        padding=True,
        tokenizer_kwargs={"padding_side": "left"},
    )
    ids_B_T = model.generate(**prompts, max_new_tokens=MAX_TOKENS, do_sample=not greedy)
    said = ids_B_T[:, prompts["input_ids"].shape[1] :].tolist()
    ends = [ids.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in ids else len(ids) for ids in said]
    return [tokenizer.decode(ids[:end]) for ids, end in zip(said, ends, strict=True)]


if __name__ == "__main__":
    main()
