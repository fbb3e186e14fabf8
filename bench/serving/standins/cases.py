"""Made-up replies, committed by their seeds: characters of several bytes, emoji, stop strings, calls of tools, bytes that are no text."""

import random
from dataclasses import dataclass
from typing import Any

from rollout_svc.chat import Chat

WORDS = (
    "a",
    "ab",
    " ",
    "\n",
    "é",
    "né",
    "日本語",
    "🙂",
    "👩‍👩‍👧",
    "\u0301",
    "3 + 4",
    "7",
    "<",
    "<tool",
    "stop",
    "\ufffd",
    "ß",
    "мир",
    "🇩🇪",
    "}",
)
CALLS = (
    '<tool_call>{"name": "pair", "arguments": {"a": "é🙂", "b": 1}}</tool_call>',
    '<tool_call>\n{"name": "pair", "arguments": {"b": 22, "a": "日本"}}\n</tool_call>',
    "<tool_call><function=pair><parameter=a>\nx\n</parameter></function></tool_call>",
    "<search>dams 🙂</search>",
    "<tool_call>not JSON</tool_call>",
    "<tool_call>{",
    "<search>",
)
SCHEMAS: dict[str, dict[str, Any]] = {
    "search": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    "pair": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a", "b"]},
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
MAX_TOKENS = 300
KINDS = ("words", "bytes", "ids", "calls")


@dataclass(frozen=True)
class Case:
    number: int
    ids: list[int]
    """All tokens that the source has for it."""
    stop: list[str]
    has_tools: bool


def case_of(number: int, chat: Chat) -> Case:
    """The same for the same number."""
    rng = random.Random(number)
    kind = KINDS[number % len(KINDS)]
    words = [rng.choice(WORDS if kind != "calls" or rng.random() < 0.5 else CALLS) for _ in range(rng.randint(1, 16))]
    text = "".join(words)
    match kind:
        case "bytes":
            ids = [token for char in text for token in encoded(chat, char)]
        case "ids":
            ids = [token for _ in range(rng.randint(1, 40)) if (token := rng.randrange(3, chat.vocabulary)) not in chat.stop_ids]
        case _:
            ids = encoded(chat, text)
    ids = ids[:MAX_TOKENS] or encoded(chat, "a")
    if kind == "calls" or rng.random() < 0.3:
        return Case(number, ids, [], kind == "calls")
    whole = chat.decode(ids).replace("\0", "")  # which the HTTP door refuses in a body
    return Case(number, ids, [_stop(rng, whole) for _ in range(rng.randint(1, 4))], has_tools=False)


def _stop(rng: random.Random, whole: str) -> str:
    """Half of them are in the text, and go over tokens and flushes."""
    if rng.random() < 0.5 and len(whole) > 2:
        begin = rng.randrange(len(whole) - 1)
        return whole[begin : begin + rng.randint(1, 6)]
    return "".join(rng.choice(WORDS) for _ in range(rng.randint(1, 2)))


def encoded(chat: Chat, text: str) -> list[int]:
    return list(chat._tokenizer.encode(text, add_special_tokens=False))  # pyright: ignore[reportPrivateUsage]


def cut(text: str, stop: list[str]) -> str:
    """Text before the stop string that is complete first."""
    ends = [(text.find(string) + len(string), text.find(string)) for string in stop if string in text]
    return text[: min(ends)[1]] if ends else text
