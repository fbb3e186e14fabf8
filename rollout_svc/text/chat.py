"""Messages to tokens and back. The only module that tokenizes.

A conversation is encoded once and from then on only appended to. A later turn appends what the chat template
writes after an assistant's reply, found by rendering the new messages behind a fixed dummy conversation: the end of the
turn, the new messages, and the opening of the next reply. Earlier tokens stay as they were sampled: re-encoding
their text could give other tokens, and the trainer would then train tokens that the policy never sampled. So a template that
rewrites earlier replies, such as one that drops their reasoning, changes none here. Only the template writes control tokens
(`control_tokens.py`).

Encoding takes a second per few hundred thousand characters, and the event loop serves every tenant. So a text that cannot fit is
refused by its length in characters if the tokenizer allows that, and long texts are encoded in a thread, one at a time.
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
"""Maximum cached first prompts: members of a group share one, and arrive in one or several messages."""
CACHED_LATER = 512
"""Maximum cached later turns: environments repeat some messages, such as "wrong answer", "your turn" or an empty result."""
CACHED_CHARS = 4096
"""Maximum length of cached messages; longer ones are hardly ever repeated."""
LONG_CHARS = 8_000
"""Maximum length encoded on the event loop; longer messages are encoded in a thread."""
KEPT_REFUSALS = 512
"""Cached refusals of long prompts, so that they are not encoded for each member of a group."""
MAX_PROBE_TOKENS = 10_000
"""Maximum tokens of the tool result that probes whether a template accepts tool results."""
NO_ARGUMENTS: Mapping[str, JsonValue] = {}
SPACE_TOKENS = 4
"""Maximum whitespace tokens after a reasoning mark at the end of a prompt."""
CUT = "..."
"""Suffix of a tool result that was cut."""


T = TypeVar("T")


class PromptTooLong(UnusablePrompt):
    """A prompt longer than allowed; its text is the size."""


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
        # Template arguments are part of cache keys as JSON: as Python values, True and 1 would be one key.
        self._first: Callable[[tuple[ChatMessage, ...], str, str, int], tuple[int, ...]] = lru_cache(CACHED_PROMPTS)(self._encode_first)
        self._cached_later: Callable[[tuple[ChatMessage, ...], str, int], tuple[int, ...]]
        self._cached_later = lru_cache(CACHED_LATER)(self._encode_after_reply)
        self._end: Callable[[tuple[int, ...]], str] = lru_cache(CACHED_LATER)(self.decode)
        self._tokens_of: Callable[[str], int] = lru_cache(self._count_tokens)
        self._long = asyncio.Lock()
        self._refused: dict[bytes, str] = {}

    @classmethod
    def load(cls, model: str) -> "Chat":
        """Load the tokenizer of a model folder or Hugging Face name. Raises: Fatal if it has no chat template or no end-of-turn token."""
        from transformers import AutoTokenizer, GenerationConfig

        try:
            # Other values of these flags, set in the model's repository, would split control tokens and change the text of replies.
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
        """Run `with_messages`, in a thread if the text is long, so that the event loop is not blocked."""
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
        """Append the new messages and the opening of a reply to the request's transcript. `arguments`: the task's template arguments.

        Raises: UnusablePrompt if the messages exceed `limits`, or the chat template refuses them or an argument.
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
        """Tokens and text of a whole conversation with the opening of a reply. `messages`: as chat templates take them.

        Raises: PromptTooLong for more than `max_tokens`; UnusablePrompt as `with_messages`.
        """
        template = json.dumps(arguments, sort_keys=True)

        def encoded() -> tuple[list[int], str]:
            rendered = self._template.render(messages, tools, template)
            return list(self._encode_up_to(max_tokens, rendered)), rendered

        return await self._apart(len(json.dumps(messages)) + len(json.dumps(tools)), encoded)

    async def plain(self, text: str, max_tokens: int) -> list[int]:
        """Tokens of a text without a chat template, after the tokenizer's prefix tokens. Raises: PromptTooLong."""
        begins = self._begins
        disarmed = str(self._controls.disarmed(text, names=False))
        return await self._apart(len(text), lambda: [*begins, *self._encode_up_to(max_tokens - len(begins), disarmed)])

    async def _apart(self, chars: int, encode: Callable[[], T]) -> T:
        """Result of `encode`, which runs in a thread if its text is long."""
        if chars <= LONG_CHARS:
            return encode()
        async with self._long:
            return await asyncio.to_thread(encode)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, special ones included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def thoughts_after(self, ids: Sequence[int], marks: tuple[str, str] | None) -> Thoughts:
        """Reasoning parser for a reply to the prompt `ids`. `marks`: the pool's. Cached by the prompt's last tokens, which repeat."""
        opening = (marks or DEFAULT_MARKS)[0]
        return Thoughts.after(self._end(tuple(ids[-self._tokens_of(opening) - SPACE_TOKENS :])), marks)

    def _count_tokens(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def token_bytes(self, token: int) -> bytes:
        """Bytes that a token adds to a text, including parts of a character."""
        return self._bytes.of(token)

    @cached_property
    def openings(self) -> list[Opening]:
        """Text that the template writes before a message, by role."""
        return openings_of(self._tokenizer, self._ends, self._controls)

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Ids of control tokens, which text from outside is never encoded to."""
        return frozenset(id for id, token in self._tokenizer.added_tokens_decoder.items() if self._controls.spells(token.content))

    @cached_property
    def _begins(self) -> list[int]:
        """Tokens that the tokenizer puts before every text, such as BOS; suffix tokens are ignored."""
        bare, whole = (self._tokenizer.encode("a", add_special_tokens=special) for special in (False, True))
        return list(next((whole[:at] for at in range(len(whole)) if whole[at : at + len(bare)] == bare), ()))

    @property
    def vocabulary(self) -> int:
        """Number of tokens in the vocabulary."""
        return len(self._tokenizer)

    def text(self, ids: Sequence[int]) -> str:
        """Text of a sampled reply without its end-of-turn token; other special tokens stay, as they may carry meaning."""
        kept = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        return self.decode(kept)

    def stop_strings(self, strings: Sequence[str]) -> StopStrings | None:
        """Matcher of `strings` in one reply; None if there are none. Raises: UnusablePrompt if the tokenizer does not support it."""
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
        """Tokens of a later turn's new messages. Raises: PromptTooLong."""
        is_short = sum(len(message.content) for message in request.messages) <= CACHED_CHARS
        encode = self._cached_later if is_short else self._encode_after_reply
        return _appended(request.transcript, encode(tuple(request.messages), template, max_tokens), max_tokens)

    def _encode_after_reply(self, messages: tuple[ChatMessage, ...], template: str, max_tokens: int) -> tuple[int, ...]:
        """Tokens that the template writes after a reply; the first one, the reply's end of turn, does not count towards `max_tokens`."""
        return self._encode_up_to(max_tokens + 1, self._template.after_reply(messages, template))

    @cached_property
    def takes_answers(self) -> bool:
        """Whether the template accepts tool results after a reply."""
        try:
            return bool(self._encode_after_reply((ChatMessage(role="tool", content="7", name="calculator"),), "{}", MAX_PROBE_TOKENS))
        except (UnusablePrompt, PromptTooLong):
            return False

    def _encode_cut(self, request: TurnRequest, template: str, max_tokens: int) -> list[int] | None:
        """New messages with tool results cut so that all fit into `max_tokens`; None if that is impossible.

        The policy chose to request that much, so the attempt stays valid.
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
        # Grow from a small length: the texts encoded here then hardly exceed the limit, however long the results are.
        start, end = 1, max_tokens
        while end < longest and cut(end) is not None:
            start, end = end, 2 * end
        # Tokens grow with characters, except one or two where texts join, so the cut may be that much too early.
        fits = start - 1 + bisect_left(range(start, min(end, longest)), True, key=lambda kept: cut(kept) is None)
        return cut(fits)

    def _encode_up_to(self, max_tokens: int, text: str) -> tuple[int, ...]:
        """Encode a text. Raises: PromptTooLong for more than `max_tokens`."""
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
    """Tokens to append after `transcript`. `ids` begins with an end-of-turn token. Raises: PromptTooLong for more than `max_tokens`."""
    # A reply that ended by itself already has its end token; one that was cut short gets it here as a token that was not sampled.
    new = list(ids[1:] if ids[0] == int(transcript.ids_T()[-1]) else ids)
    if len(new) > max_tokens:
        raise PromptTooLong(f"{len(new)} tokens")
    return new


def _digest(request: TurnRequest, limits: Limits, arguments: Mapping[str, JsonValue]) -> bytes:
    """Digest of everything that decides whether the request's prompt is refused."""
    decides = [limits.model_dump(), request.tools, arguments]
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode() + request.transcript.ids[-4:])
    for message in request.messages:
        digest.update(f"\n{message.role} {len(message.content)} ".encode() + message.content.encode())
    return digest.digest()
