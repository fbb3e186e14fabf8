"""Fields of OpenAI's requests that are not honoured: harmless ones, which cannot change an answer, and refused ones, with the reason."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

MAX_METADATA = 16
"""Maximum entries of `metadata`."""


@dataclass(frozen=True)
class Harmless:
    """A field that no answer depends on."""

    values: str
    """Permitted values, as the documentation shows them."""
    permits: Callable[[JsonValue], bool]
    reason: str
    """Why it cannot change an answer."""


def _is_text(value: JsonValue) -> bool:
    return isinstance(value, str)


def _only(*values: JsonValue) -> Callable[[JsonValue], bool]:
    return lambda value: any(value == one and type(value) is type(one) for one in values)


HARMLESS: Mapping[str, Harmless] = {
    "store": Harmless("`false`", _only(False), "nothing is stored"),
    "user": Harmless("any text", _is_text, "it names the caller's end user for abuse monitoring, which there is not"),
    "safety_identifier": Harmless("any text", _is_text, "as `user`"),
    "prompt_cache_key": Harmless("any text", _is_text, "equal beginnings of prompts are found by their tokens, within a tenant"),
    "prompt_cache_retention": Harmless("`in_memory`", _only("in_memory"), "the prefix cache is in memory"),
    "service_tier": Harmless("`auto`, `default`", _only("auto", "default"), "there is one tier"),
    "modalities": Harmless('`["text"]`', _only(["text"]), "answers are text"),
    "background": Harmless("`false`", _only(False), "every answer is awaited"),
    "truncation": Harmless("`disabled`", _only("disabled"), "a prompt that is too long is refused"),
    "echo": Harmless("`false`", _only(False), "an answer does not repeat its prompt"),
}
"""Top-level field → what it may be."""

_STATELESS = "answers are not stored, so that nothing can be continued or named; send the whole conversation"
CONSTRAINED = "it needs constrained decoding, which the engine does not offer"
REFUSED: Mapping[str, str] = {
    "audio": "answers are text",
    "modalities": "answers are text",
    "prediction": "there is no speculative decoding",
    "functions": "use `tools`",
    "function_call": "use `tool_choice`",
    "web_search_options": "there are no hosted tools",
    "moderation": "there is no moderation",
    "reasoning_effort": "models have no such setting; `chat_template_kwargs` sets what a chat template reads",
    "reasoning": "models have no such setting; `chat_template_kwargs` sets what a chat template reads",
    "verbosity": "models have no such setting",
    "prompt_cache_options": "the prefix cache has no breakpoints",
    "store": "nothing is stored",
    "previous_response_id": _STATELESS,
    "conversation": _STATELESS,
    "prompt": "there are no stored prompts",
    "background": "every answer is awaited",
    "context_management": "a prompt that is too long is refused",
    "truncation": "a prompt that is too long is refused",
    "max_tool_calls": "there are no hosted tools, whose calls it bounds",
    "access_programs": "there are none",
    "image": "images are not read",
    "suffix": "text is continued, not filled in",
    "echo": "an answer does not repeat its prompt",
    "prompt_cache_retention": "the prefix cache is in memory",
    "service_tier": "there is one tier",
    "guided_json": CONSTRAINED,
    "structured_outputs": CONSTRAINED,
}
"""Fields of OpenAI's requests that would change an answer and are not honoured, or some values of them → the reason. All other fields are
refused as unknown."""
