"""Tokens that a request is charged before they are known. What it was given is charged in the end, and the rest given back. Pure."""

import json

from gateway_svc.openai.sampling.order import Choice, Prompt

ASSUMED_REPLY = 512
"""Tokens of a reply whose request says no maximum; a longer one is charged as many more each time that it reaches them."""
CHARS_PER_TOKEN = 4


def tokens_of(choice: Choice) -> int:
    return prompt_tokens(choice.prompt) + (choice.sampling.max_tokens or ASSUMED_REPLY)


def prompt_tokens(prompt: Prompt) -> int:
    """Exact for tokens, a guess for text."""
    if prompt.ids is not None:
        return len(prompt.ids)
    chars = len(prompt.text or "") + sum(len(message.content or "") for message in prompt.messages or ())
    chars += sum(len(json.dumps(tool)) for tool in prompt.tools)
    return chars // CHARS_PER_TOKEN + 1
