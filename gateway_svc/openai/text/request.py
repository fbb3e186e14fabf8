"""The request of `/v1/completions`."""

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from gateway_svc.openai.chat.request import Metadata, StreamOptions
from gateway_svc.openai.sampling.order import Choice, Prompt
from gateway_svc.openai.sampling.settings import MAX_CHOICES, MAX_TOKEN_ID, SamplingFields, seed_of_choice

MAX_TOKENS = 16
"""Tokens of an answer where none are given, as OpenAI has it."""
MAX_PROMPTS = 64
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
Text = Annotated[str, Field(min_length=1)]
Ids = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]


def _as_prompts(value: JsonValue) -> JsonValue:
    """A list of prompts. One prompt may be given alone."""
    is_ids = isinstance(value, list) and bool(value) and all(isinstance(one, int) for one in value)
    return [value] if isinstance(value, str) or is_ids else value


_FEW = Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)
Prompts = Annotated[Annotated[list[Text], _FEW] | Annotated[list[Ids], _FEW], BeforeValidator(_as_prompts)]


class CompletionRequest(SamplingFields):
    model: str = Field(min_length=1, max_length=200)
    prompt: Prompts
    """A text or token ids, or several of one kind. No chat template is applied."""
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    best_of: int | None = None
    """Equal to `n`, if it is given: no candidates are discarded."""
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
        """By prompt, then by choice. A prompt's seeds are the same whatever is beside it."""
        seed = self.first_seed
        settings = [self.settings(seed_of_choice(seed, number), self.max_tokens, self.logprobs) for number in range(self.n)]
        return [Choice(_prompt(prompt), sampling) for prompt in self.prompt for sampling in settings]


def _prompt(given: str | Sequence[int]) -> Prompt:
    return Prompt(text=given, param="prompt") if isinstance(given, str) else Prompt(ids=given, param="prompt")
