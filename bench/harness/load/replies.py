"""Replies of a model in transformers, without the project's sampler: for evaluations that are independent of it."""

from collections.abc import Sequence
from typing import Any

import torch

from common.messages import ChatMessage
from env_svc.contract import Reply


def replies(model: Any, tokenizer: Any, prompts: Sequence[Sequence[ChatMessage]], max_tokens: int, *, greedy: bool) -> list[Reply]:
    """One reply to each prompt, greedy or at temperature 1; torch's own generator is used. The tokenizer pads on the left."""
    chats = [[message.model_dump(exclude_none=True) for message in messages] for messages in prompts]
    texts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
    given = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    with torch.no_grad():
        how: dict[str, Any] = {"do_sample": False, "temperature": None, "top_k": None} if greedy else {"do_sample": True, "top_k": 0}
        ids_B_T = model.generate(**given, max_new_tokens=max_tokens, **how)
    new_B_T = ids_B_T[:, given["input_ids"].shape[1] :]
    ended_B = (new_B_T == tokenizer.eos_token_id).any(1).tolist()
    said = tokenizer.batch_decode(new_B_T, skip_special_tokens=True)
    return [Reply(str(text), truncated=not ended) for text, ended in zip(said, ended_B, strict=True)]
