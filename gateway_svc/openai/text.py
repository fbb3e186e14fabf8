"""`/v1/completions`: the request, the answer, and its chunks, which have the same shape as whole answers."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, JsonValue, model_validator

from common.messages.serving import ServedDelta, ServedToken
from gateway_svc.openai.chat.request import Metadata, StreamOptions
from gateway_svc.openai.sampling.choices import Choice, Prompt
from gateway_svc.openai.sampling.counting import Counted, Head, UsageOf, usage_of
from gateway_svc.openai.sampling.settings import MAX_CHOICES, MAX_TOKEN_ID, SamplingFields, seed_of_choice

MAX_TOKENS = 16
"""Default maximum tokens of an answer, as in OpenAI's API."""
MAX_PROMPTS = 64
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
Text = Annotated[str, Field(min_length=1)]
Ids = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
_FEW = Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)


def _as_prompts(value: JsonValue) -> JsonValue:
    """List of prompts; a single prompt is wrapped in a list."""
    is_ids = isinstance(value, list) and bool(value) and all(isinstance(one, int) for one in value)
    return [value] if isinstance(value, str) or is_ids else value


Prompts = Annotated[Annotated[list[Text], _FEW] | Annotated[list[Ids], _FEW], BeforeValidator(_as_prompts)]


class CompletionRequest(SamplingFields):
    model: str = Field(min_length=1, max_length=200)
    prompt: Prompts
    """A text or token ids, or a list of one of these. No chat template is applied."""
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    best_of: int | None = None
    """Must equal `n` if set: no candidates are discarded."""
    max_tokens: int = Field(default=MAX_TOKENS, ge=1)
    logprobs: int | None = Field(default=None, ge=0, le=20)
    stream: bool = False
    stream_options: StreamOptions | None = None
    metadata: Metadata

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.best_of not in (None, self.n):
            raise ValueError("best_of is n here: no candidates are discarded")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream to be true")
        if len(self.prompt) * self.n > MAX_PROMPTS:
            raise ValueError(f"{len(self.prompt)} prompts of n = {self.n} are more than {MAX_PROMPTS} choices")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def choices(self) -> list[Choice]:
        """Choices ordered by prompt, then by choice. A prompt's seeds do not depend on the other prompts."""
        seed = self.first_seed
        settings = [self.settings(seed_of_choice(seed, number), self.max_tokens, self.logprobs) for number in range(self.n)]
        return [Choice(_prompt(prompt), sampling) for prompt in self.prompt for sampling in settings]


def _prompt(given: str | Sequence[int]) -> Prompt:
    return Prompt(text=given, param="prompt") if isinstance(given, str) else Prompt(ids=given, param="prompt")


class TextLogprobs(BaseModel):
    text_offset: list[int]
    """For each token, the number of answer characters before it."""
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]]


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    """None in chunks before the last of a choice."""


class TextAnswer(BaseModel):
    """Serialized without unset fields: chunks have `usage` only if requested."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    system_fingerprint: str | None
    usage: UsageOf | None = None


class TextStream:
    """Builds the chunks of one answer. `choices`: their number."""

    def __init__(self, head: Head, choices: int, *, include_usage: bool) -> None:
        self._head = head
        self._counted = [Counted() for _ in range(choices)]
        self._offsets = [0] * choices
        self._include_usage = include_usage

    def chunks(self, choice: int, delta: ServedDelta) -> list[TextAnswer]:
        """Chunks for a delta; empty if its tokens gave no text yet."""
        self._counted[choice].add(delta)
        if not delta.text and not delta.tokens and delta.finish is None:
            return []
        shown = _choice(choice, delta.text, delta.tokens, self._offsets[choice], delta)
        self._offsets[choice] += sum(len(token.token) for token in delta.tokens)
        return [_answer(self._head, [shown], self._counted[choice].fingerprint, None, has_usage=self._include_usage)]

    def end(self) -> list[TextAnswer]:
        """The chunk with the usage, if requested."""
        if not self._include_usage:
            return []
        return [_answer(self._head, [], self._counted[0].fingerprint, usage_of(self._counted), has_usage=True)]


def text_answer(head: Head, choices: Sequence[Sequence[ServedDelta]]) -> TextAnswer:
    """Build the whole answer from all deltas of each choice."""
    counted = [Counted.of(deltas) for deltas in choices]
    found = [
        _choice(index, "".join(one.text for one in deltas), [token for one in deltas for token in one.tokens], 0, deltas[-1])
        for index, deltas in enumerate(choices)
    ]
    return _answer(head, found, counted[0].fingerprint, usage_of(counted), has_usage=True)


def _choice(index: int, text: str, tokens: Sequence[ServedToken], offset: int, last: ServedDelta) -> TextChoice:
    finish = None if last.finish is None else "length" if last.finish == "length" else "stop"
    return TextChoice(index=index, text=text, logprobs=_logprobs(tokens, offset) if tokens else None, finish_reason=finish)


def _logprobs(tokens: Sequence[ServedToken], offset: int) -> TextLogprobs:
    offsets: list[int] = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.token)
    return TextLogprobs(
        text_offset=offsets,
        token_logprobs=[token.logprob for token in tokens],
        tokens=[token.token for token in tokens],
        top_logprobs=[{one.token: one.logprob for one in token.top} | {token.token: token.logprob} for token in tokens],
    )


def _answer(head: Head, choices: list[TextChoice], fingerprint: str, usage: UsageOf | None, *, has_usage: bool) -> TextAnswer:
    return TextAnswer(
        id=f"cmpl-{head.request}",
        object="text_completion",
        created=head.created,
        model=head.model,
        choices=choices,
        system_fingerprint=fingerprint or None,
        **({"usage": usage} if has_usage else {}),
    )
