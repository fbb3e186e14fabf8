"""The request of `/v1/chat/completions`."""

from typing import Annotated, Self

from pydantic import BeforeValidator, FailFast, Field, JsonValue, model_validator

from gateway_svc.openai.chat.messages import ChatMessageIn, as_messages
from gateway_svc.openai.fields import CONSTRAINED, MAX_METADATA
from gateway_svc.openai.parsing import Strict, not_honoured
from gateway_svc.openai.sampling.order import Choice, Prompt
from gateway_svc.openai.sampling.settings import MAX_CHOICES, SamplingFields, seed_of_choice
from gateway_svc.openai.sampling.tools import MAX_TOOLS, ChatTool, ToolChoice

MAX_MESSAGES = 4096
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(default={}, max_length=MAX_METADATA)
]
"""Returned with the answer."""


def _is_text(value: JsonValue) -> JsonValue:
    if value != {"type": "text"}:
        raise not_honoured(f"it is {{'type': 'text'}}; for others, {CONSTRAINED}")
    return value


def is_not_padded(value: JsonValue) -> JsonValue:
    if value is True:
        raise not_honoured("events are not padded")
    return value


TextFormat = Annotated[dict[str, JsonValue], BeforeValidator(_is_text)]


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: Annotated[bool, BeforeValidator(is_not_padded)] = False


class ChatRequest(SamplingFields):
    model: str = Field(min_length=1, max_length=200)
    messages: Annotated[list[ChatMessageIn], FailFast()] = Field(min_length=1, max_length=MAX_MESSAGES)
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """The same as `max_tokens`; without both, as many as the context has room for."""
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: list[ChatTool] = Field(default=[], max_length=MAX_TOOLS)
    tool_choice: ToolChoice = "auto"
    """`none`: the prompt does not show the tools."""
    parallel_tool_calls: bool = True
    response_format: TextFormat | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    metadata: Metadata
    chat_template_kwargs: dict[str, JsonValue] = {}
    """Variables of the chat template."""

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream to be true")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens are the same setting, and differ")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def choices(self) -> list[Choice]:
        tools = [tool.function.for_template() for tool in self.tools] if self.tool_choice == "auto" else []
        prompt = Prompt(
            messages=as_messages(self.messages), tools=tools, parallel_calls=self.parallel_tool_calls, template=self.chat_template_kwargs
        )
        max_tokens, seed = self.max_completion_tokens or self.max_tokens, self.first_seed
        top = (self.top_logprobs or 0) if self.logprobs else None
        return [Choice(prompt, self.settings(seed_of_choice(seed, number), max_tokens, top)) for number in range(self.n)]
