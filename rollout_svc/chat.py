"""Messages to tokens and back. The only module that tokenizes.

A conversation is encoded once and from then on only appended to. What a later turn appends is what the chat template
writes after an assistant's reply, found by rendering the new messages behind a fixed dummy conversation: the end of the
turn, the new messages, and the opening of the next reply. The tokens before stay as they were sampled, because encoding
their text again could give others, and the trainer would then train tokens that nobody sampled.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from common.errors import Fatal
from common.messages import ChatMessage, TokenRecord, TurnRequest
from common.spec import Limits

CACHED_PROMPTS = 512
"""The members of a group share their first prompt, and come in one message or in several."""
CACHED_LATER = 512
"""Environments say some things often: that the answer was wrong, that it is the other's turn, an empty result."""
CACHED_CHARS = 4096
"""Longer messages are hardly ever said twice."""
DUMMY_REPLY = "a-reply-that-nobody-gave"
CUT = "..."
"""After as much of a tool's answer as fits."""


class UnusablePrompt(Exception):
    """A prompt that cannot be sampled from; its text is the reason that the task's owner reads."""


class Chat:
    """A model's tokenizer and chat template."""

    def __init__(self, tokenizer: Any, stop_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer  # of transformers, whose classes are loosely typed
        self.stop_ids = tuple(stop_ids)
        """Tokens that end a turn."""
        self._first: Callable[[tuple[ChatMessage, ...], str], tuple[int, ...]] = lru_cache(CACHED_PROMPTS)(self._encode_first)
        self._said_before: Callable[[tuple[ChatMessage, ...]], tuple[int, ...]] = lru_cache(CACHED_LATER)(self._encode_after_reply)

    @classmethod
    def load(cls, model: str) -> "Chat":
        """Of a model folder or Hugging Face name. Raises: Fatal when the model has no chat template or no end of turn."""
        from transformers import AutoTokenizer, GenerationConfig

        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(model)
        except (OSError, ValueError) as error:
            raise Fatal(f"no tokenizer for {model}: {str(error).splitlines()[0]}") from None
        if not tokenizer.chat_template:
            raise Fatal(f"the tokenizer of {model} has no chat template; use an instruction-tuned model or add chat_template.jinja")
        try:
            configured: Any = GenerationConfig.from_pretrained(model).eos_token_id
        except OSError:  # no generation_config.json
            configured = None
        stop_ids = {tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])} - {None}
        if not stop_ids:
            raise Fatal(f"the tokenizer of {model} has no end-of-sequence token, so no reply would ever end")
        return cls(tokenizer, sorted(stop_ids))

    def with_messages(self, request: TurnRequest, limits: Limits) -> TokenRecord:
        """The request's transcript, followed by its new messages and the opening of a reply.

        Raises: UnusablePrompt when the messages are longer than `limits` allow or the chat template refuses them.
        """
        if len(request.transcript) == 0:
            ids = self._first(tuple(request.messages), json.dumps(request.tools))
            if len(ids) > limits.max_prompt_tokens:
                raise UnusablePrompt(f"the prompt has {len(ids)} tokens, but limits.max_prompt_tokens is {limits.max_prompt_tokens}")
            return request.transcript.with_context(list(ids))
        new = self._encode_later(request.transcript, request.messages)
        if len(new) > limits.max_reply_tokens:
            new = self._encode_cut(request, limits.max_reply_tokens) or new
        if len(new) > limits.max_reply_tokens:
            raise UnusablePrompt(f"the environment's reply has {len(new)} tokens, but limits.max_reply_tokens is {limits.max_reply_tokens}")
        return request.transcript.with_context(new)

    def text(self, ids: Sequence[int]) -> str:
        """The reply that sampled tokens spell, without the end of the turn; other special tokens stay, as they may mean something."""
        kept = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        return str(self._tokenizer.decode(list(kept), skip_special_tokens=False))

    def _encode_first(self, messages: tuple[ChatMessage, ...], tools: str) -> tuple[int, ...]:
        return tuple(self._encode(self._render([message.model_dump() for message in messages], json.loads(tools))))

    def _encode_later(self, transcript: TokenRecord, messages: Sequence[ChatMessage]) -> list[int]:
        is_short = sum(len(message.content) for message in messages) <= CACHED_CHARS
        ids = self._said_before(tuple(messages)) if is_short else self._encode_after_reply(messages)
        # A reply that ended by itself has its end among its tokens; one that was cut short gets it here, not sampled.
        return list(ids[1:] if ids[0] == int(transcript.ids_T()[-1]) else ids)

    def _encode_after_reply(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """What the template writes after a reply, the end of the reply's turn first."""
        dummy = [{"role": "user", "content": "."}, {"role": "assistant", "content": DUMMY_REPLY}]
        rendered = self._render([*dummy, *(message.model_dump() for message in messages)], [])
        after = rendered.partition(DUMMY_REPLY)[2]
        if not after:
            raise UnusablePrompt("the model's chat template leaves out earlier replies, so that turns cannot be appended to each other")
        return tuple(self._encode(after))

    def _encode_cut(self, request: TurnRequest, most: int) -> list[int] | None:
        """The new messages with the answers of tools cut so that all have at most `most` tokens; None where that is too few.

        The policy chose to ask for so much, so the attempt is not void because of it.
        """

        def cut(kept: int) -> list[int]:
            shorter = [
                message.model_copy(update={"content": message.content[:kept] + CUT})
                if message.role == "tool" and len(message.content) > kept
                else message
                for message in request.messages
            ]
            return self._encode_later(request.transcript, shorter)

        longest = max((len(message.content) for message in request.messages if message.role == "tool"), default=0)
        if not longest:
            return None
        # Tokens grow with characters but for one here and there, where two texts join: the cut may be that much too early.
        fits = bisect_left(range(1, longest), True, key=lambda kept: len(cut(kept)) > most)
        found = cut(fits)
        return found if len(found) <= most else None

    def _render(self, messages: list[dict[str, Any]], tools: list[Any]) -> str:
        from jinja2 import TemplateError

        try:
            return str(self._tokenizer.apply_chat_template(messages, tools=tools or None, add_generation_prompt=True, tokenize=False))
        except TemplateError as error:
            raise UnusablePrompt(f"the model's chat template refuses these messages: {error}") from None

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))
