"""Messages to tokens and back. The only module that tokenizes.

A conversation is encoded once and from then on only appended to. What a later turn appends is what the chat template
writes after an assistant's reply, found by rendering the new messages behind a fixed dummy conversation: the end of the
turn, the new messages, and the opening of the next reply. The tokens before stay as they were sampled, because re-encoding
their text could give others, and the trainer would then train tokens that the policy never sampled. So a template that
rewrites earlier replies, as those do that leave out their thinking, rewrites none here. Control tokens are the template's alone
(`control_tokens.py`).

Encoding takes a second for some hundred thousand characters, and the event loop serves every tenant. So a text that cannot fit is
refused by its characters where the tokenizer allows that, and a long one is encoded in a thread, one after another.
"""

import asyncio
import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from pydantic import JsonValue

from common.errors import Fatal
from common.messages import ChatMessage, Opening, TokenRecord, TurnRequest
from common.spec import Limits
from common.tool_calls import DEFAULT_MARKS, Thoughts
from rollout_svc.text.control_tokens import MARK, ControlTokens, openings_of
from rollout_svc.text.reply_text import StopStrings
from rollout_svc.text.template import Template, UnusablePrompt, plain
from rollout_svc.text.token_bytes import TokenBytes, max_chars

CACHED_PROMPTS = 512
"""Entries: the members of a group share their first prompt, and come in one message or in several."""
CACHED_LATER = 512
"""Entries: environments repeat some messages, such as "wrong answer", "your turn" or an empty result."""
CACHED_CHARS = 4096
"""Maximum length of cached messages; longer ones are hardly ever repeated."""
LONG_CHARS = 8_000
"""Maximum length encoded on the event loop; longer messages are encoded in a thread."""
KEPT_REFUSALS = 512
"""Cached refusals of long prompts, so that they are not encoded for each member of a group."""
MAX_PROBE_TOKENS = 10_000
"""Maximum tokens of the answer of a tool that shows whether a template takes them."""
NO_ARGUMENTS: Mapping[str, JsonValue] = {}
SPACE_TOKENS = 4
"""Tokens of white space that may follow a mark at the end of a prompt."""
CUT = "..."
"""Suffix of a tool's answer that was cut."""


T = TypeVar("T")


class PromptTooLong(UnusablePrompt):
    """More tokens than allowed; its text is the size."""


class Chat:
    """A model's tokenizer and chat template."""

    def __init__(self, tokenizer: Any, stop_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer  # of transformers, whose classes are loosely typed
        self.stop_ids = tuple(stop_ids)
        """Tokens that end a turn."""
        self._max_chars = max_chars(tokenizer)
        self._controls = ControlTokens(tokenizer)
        self._ends = [self.decode([token]) for token in self.stop_ids]
        self._template = Template(tokenizer, self._controls, self._ends)
        self.template_variables = self._template.variables
        self._bytes = TokenBytes(tokenizer)
        # Arguments of the template are JSON in keys: as values, true and 1 would be one key.
        self._first: Callable[[tuple[ChatMessage, ...], str, str, int], tuple[int, ...]] = lru_cache(CACHED_PROMPTS)(self._encode_first)
        self._cached_later: Callable[[tuple[ChatMessage, ...], str, int], tuple[int, ...]]
        self._cached_later = lru_cache(CACHED_LATER)(self._encode_after_reply)
        self._end: Callable[[tuple[int, ...]], str] = lru_cache(CACHED_LATER)(self.decode)
        self._tokens_of: Callable[[str], int] = lru_cache(self._count_tokens)
        self._long = asyncio.Lock()
        self._refused: dict[bytes, str] = {}

    @classmethod
    def load(cls, model: str) -> "Chat":
        """The chat of a model folder or Hugging Face name. Raises: Fatal when the model has no chat template or no end of turn."""
        from transformers import AutoTokenizer, GenerationConfig

        try:
            # Flags of its repository that would break control tokens up, and change the text of replies.
            tokenizer: Any = AutoTokenizer.from_pretrained(model, split_special_tokens=False, clean_up_tokenization_spaces=False)
        except (OSError, ValueError) as error:
            raise Fatal(f"no tokenizer for {model}: {str(error).splitlines()[0]}") from None
        if not tokenizer.chat_template:
            raise Fatal(f"the tokenizer of {model} has no chat template; use an instruction-tuned model or add chat_template.jinja")
        if isinstance(tokenizer.chat_template, dict) and "default" not in tokenizer.chat_template:
            names = ", ".join(sorted(tokenizer.chat_template))
            raise Fatal(f"the tokenizer of {model} has chat templates {names}, and none named default; add chat_template.jinja")
        try:
            configured: Any = GenerationConfig.from_pretrained(model).eos_token_id
        except OSError:  # no generation_config.json
            configured = None
        except ValueError as error:
            raise Fatal(f"generation_config.json of {model} is not valid: {str(error).splitlines()[0]}; correct it there") from None
        stop_ids = {tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])} - {None}
        if not stop_ids:
            raise Fatal(f"the tokenizer of {model} has no end-of-sequence token, so no reply would ever end")
        return cls(tokenizer, sorted(stop_ids))

    async def prompt(self, request: TurnRequest, limits: Limits, arguments: Mapping[str, JsonValue] = NO_ARGUMENTS) -> TokenRecord:
        """`with_messages` in a thread, where a long text does not block the event loop."""
        if sum(len(message.content) for message in request.messages) <= LONG_CHARS:
            return self.with_messages(request, limits, arguments)
        async with self._long:
            key = _digest(request, limits, arguments)
            if key in self._refused:
                raise UnusablePrompt(self._refused[key])
            try:
                return await asyncio.to_thread(self.with_messages, request, limits, arguments)
            except UnusablePrompt as error:
                if len(self._refused) == KEPT_REFUSALS:
                    del self._refused[next(iter(self._refused))]
                self._refused[key] = str(error)
                raise

    def with_messages(self, request: TurnRequest, limits: Limits, arguments: Mapping[str, JsonValue] = NO_ARGUMENTS) -> TokenRecord:
        """The request's transcript, followed by its new messages and the opening of a reply. `arguments`: the task's for the template.

        Raises: UnusablePrompt when the messages are longer than `limits` allow, or the chat template refuses them or an argument.
        """
        template = json.dumps(arguments, sort_keys=True)
        if len(request.transcript) == 0:
            try:
                ids = self._first(tuple(request.messages), json.dumps(request.tools), template, limits.max_prompt_tokens)
            except PromptTooLong as size:
                raise UnusablePrompt(f"the prompt has {size}, but limits.max_prompt_tokens is {limits.max_prompt_tokens}") from None
            return request.transcript.with_context(list(ids))
        try:
            new = self._encode_later(request, template, limits.max_reply_tokens)
        except PromptTooLong as size:
            cut = self._encode_cut(request, template, limits.max_reply_tokens)
            if cut is None:
                raise UnusablePrompt(
                    f"the environment's reply has {size}, but limits.max_reply_tokens is {limits.max_reply_tokens}"
                ) from None
            new = cut
        return request.transcript.with_context(new)

    async def conversation(
        self, messages: list[dict[str, Any]], tools: list[Any], arguments: Mapping[str, JsonValue], max_tokens: int
    ) -> tuple[list[int], str]:
        """Tokens and text of a whole conversation, with the opening of a reply. `messages`: as chat templates take them.

        Raises: PromptTooLong for more than `max_tokens`; UnusablePrompt as `with_messages`.
        """
        template = json.dumps(arguments, sort_keys=True)

        def encoded() -> tuple[list[int], str]:
            rendered = self._template.render(messages, tools, template)
            return list(self._encode_up_to(max_tokens, rendered)), rendered

        return await self._apart(len(json.dumps(messages)) + len(json.dumps(tools)), encoded)

    async def plain(self, text: str, max_tokens: int) -> list[int]:
        """Tokens of a text that no template is applied to, after those that the tokenizer begins every text with. Raises: as above."""
        begins = self._begins
        disarmed = str(self._controls.disarmed(text, names=False))
        return await self._apart(len(text), lambda: [*begins, *self._encode_up_to(max_tokens - len(begins), disarmed)])

    async def _apart(self, chars: int, encode: Callable[[], T]) -> T:
        """`encode` in a thread, where its text is long."""
        if chars <= LONG_CHARS:
            return encode()
        async with self._long:
            return await asyncio.to_thread(encode)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, special ones included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def thoughts_after(self, ids: Sequence[int], marks: tuple[str, str] | None) -> Thoughts:
        """Where a reply to the prompt `ids` holds thoughts. `marks`: of the pool. Templates end prompts alike, so few ends are decoded."""
        opening = (marks or DEFAULT_MARKS)[0]
        return Thoughts.after(self._end(tuple(ids[-self._tokens_of(opening) - SPACE_TOKENS :])), marks)

    def _count_tokens(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def token_bytes(self, token: int) -> bytes:
        """Bytes that a token adds to a text, of an incomplete character too."""
        return self._bytes.of(token)

    @cached_property
    def openings(self) -> list[Opening]:
        """What the template writes before messages, by role."""
        return openings_of(self._tokenizer, self._ends, self._controls)

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Tokens that no text from outside becomes."""
        return frozenset(id for id, token in self._tokenizer.added_tokens_decoder.items() if self._controls.spells(token.content))

    @cached_property
    def _begins(self) -> list[int]:
        """Tokens that the tokenizer begins every text with; others may end one."""
        bare, whole = (self._tokenizer.encode("a", add_special_tokens=special) for special in (False, True))
        return list(next((whole[:at] for at in range(len(whole)) if whole[at : at + len(bare)] == bare), ()))

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return len(self._tokenizer)

    def text(self, ids: Sequence[int]) -> str:
        """The reply that sampled tokens spell, without the end of the turn; other special tokens stay, as they may mean something."""
        kept = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        return self.decode(kept)

    def stop_strings(self, strings: Sequence[str]) -> StopStrings | None:
        """Watches one reply for `strings`; None where there are none. Raises: UnusablePrompt for a tokenizer that cannot."""
        if not strings:
            return None
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UnusablePrompt("sampling.stop needs a tokenizer of the library tokenizers, which this model does not have")
        return StopStrings(backend, strings)

    def _encode_first(self, messages: tuple[ChatMessage, ...], tools: str, template: str, max_tokens: int) -> tuple[int, ...]:
        rendered = self._template.render([plain(message) for message in messages], json.loads(tools), template)
        return self._encode_up_to(max_tokens, rendered)

    def _encode_later(self, request: TurnRequest, template: str, max_tokens: int) -> list[int]:
        """Raises: PromptTooLong."""
        is_short = sum(len(message.content) for message in request.messages) <= CACHED_CHARS
        encode = self._cached_later if is_short else self._encode_after_reply
        return _appended(request.transcript, encode(tuple(request.messages), template, max_tokens), max_tokens)

    def _encode_after_reply(self, messages: tuple[ChatMessage, ...], template: str, max_tokens: int) -> tuple[int, ...]:
        """Tokens that the template writes after a reply; the first, the end of the reply's turn, is not counted."""
        return self._encode_up_to(max_tokens + 1, self._template.after_reply(messages, template))

    @cached_property
    def takes_answers(self) -> bool:
        """Whether the template writes answers of tools after a reply."""
        try:
            return bool(self._encode_after_reply((ChatMessage(role="tool", content="7", name="calculator"),), "{}", MAX_PROBE_TOKENS))
        except (UnusablePrompt, PromptTooLong):
            return False

    def _encode_cut(self, request: TurnRequest, template: str, max_tokens: int) -> list[int] | None:
        """The new messages with the tools' answers cut to `max_tokens` for all; None where that is too few.

        The policy chose to request so much, so the attempt is not void because of it.
        """

        def cut(kept: int) -> list[int] | None:
            shorter = tuple(
                message.model_copy(update={"content": message.content[:kept] + CUT})
                if message.role == "tool" and len(message.content) > kept
                else message
                for message in request.messages
            )
            try:
                return _appended(request.transcript, self._encode_after_reply(shorter, template, max_tokens), max_tokens)
            except PromptTooLong:
                return None

        longest = max((len(message.content) for message in request.messages if message.role == "tool"), default=0)
        if not longest or cut(0) is None:
            return None
        # Upwards from little: the texts encoded here are hardly longer than the limit, however long the answers are.
        start, end = 1, max_tokens
        while end < longest and cut(end) is not None:
            start, end = end, 2 * end
        # Tokens grow with characters, except for one or two where texts join: the cut may be that much too early.
        fits = start - 1 + bisect_left(range(start, min(end, longest)), True, key=lambda kept: cut(kept) is None)
        return cut(fits)

    def _encode_up_to(self, max_tokens: int, text: str) -> tuple[int, ...]:
        """Raises: PromptTooLong for more than `max_tokens`."""
        if self._max_chars is not None and len(text) > max_tokens * self._max_chars:
            raise PromptTooLong(f"{len(text)} characters, far more than fit")
        ids = self._encode(text)
        if len(ids) > max_tokens:
            raise PromptTooLong(f"{len(ids)} tokens")
        return tuple(ids)

    def _encode(self, text: str) -> list[int]:
        if MARK not in text:
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        try:
            return self._controls.encode(text)
        except ValueError as error:
            raise UnusablePrompt(f"a message has the text of a control token: {error}") from None


def _appended(transcript: TokenRecord, ids: Sequence[int], max_tokens: int) -> list[int]:
    """`ids`, which begin with the end of a turn, as they follow `transcript`. Raises: PromptTooLong for more than `max_tokens`."""
    # A reply that ended by itself has its end among its tokens; one that was cut short gets it here, not sampled.
    new = list(ids[1:] if ids[0] == int(transcript.ids_T()[-1]) else ids)
    if len(new) > max_tokens:
        raise PromptTooLong(f"{len(new)} tokens")
    return new


def _digest(request: TurnRequest, limits: Limits, arguments: Mapping[str, JsonValue]) -> bytes:
    """Digest of all that decides whether the request's prompt is refused."""
    decides = [limits.model_dump(), request.tools, arguments]
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode() + request.transcript.ids[-4:])
    for message in request.messages:
        digest.update(f"\n{message.role} {len(message.content)} ".encode() + message.content.encode())
    return digest.digest()
