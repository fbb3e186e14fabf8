"""The request of `/v1/chat/completions`, and its messages in the format of chat templates. Text only."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, FailFast, Field, JsonValue, model_validator

from common.messages.serving import ServedCall, ServedMessage
from gateway_svc.openai.parsing import CONSTRAINED, MAX_METADATA, Strict, Unset, not_honoured
from gateway_svc.openai.sampling.choices import Choice, Prompt
from gateway_svc.openai.sampling.settings import MAX_CHOICES, MAX_TOOLS, ChatTool, SamplingFields, ToolChoice, seed_of_choice

MAX_CALLS = 128
"""Maximum tool calls of a message."""
MAX_MESSAGES = 4096


def _joined(value: JsonValue) -> JsonValue:
    """Content parts joined by line breaks. Raises: PydanticCustomError for a part that is no text."""
    if not isinstance(value, list):
        return value
    return "\n".join(map(_text_of, value))


def _text_of(part: JsonValue) -> str:
    match part:
        case {"type": "text", "text": str(text), **more} if not more:
            return text
        case {"type": "text"}:
            raise not_honoured("a part of the type 'text' has a text and nothing else")
        case {"type": str(kind)}:
            raise not_honoured(f"parts of the type '{kind[:40]}' are not supported; prompts are text")
        case _:
            raise ValueError("each part is an object with a type")


Content = Annotated[str, BeforeValidator(_joined)]
"""A text, or a list of text parts."""


class _Named(Strict):
    name: str | None = None
    """Passed to the chat template."""


class _Instruction(_Named):
    role: Literal["system", "developer"]
    """`developer` becomes `system`, as chat templates know only that role."""
    content: Content

    def as_message(self) -> ServedMessage:
        return ServedMessage(role="system", content=self.content, name=self.name)


class _User(_Named):
    role: Literal["user"]
    content: Content

    def as_message(self) -> ServedMessage:
        return ServedMessage(role="user", content=self.content, name=self.name)


class _Function(Strict):
    name: str
    arguments: str


class _Call(Strict):
    id: str
    type: Literal["function"] = "function"
    function: _Function


class _Assistant(_Named):
    role: Literal["assistant"]
    content: Content | None = None
    tool_calls: Annotated[list[_Call], Field(max_length=MAX_CALLS)] | None = None
    refusal: Unset = None
    audio: Unset = None
    function_call: Unset = None
    annotations: Unset = None
    reasoning_content: Unset = None
    """Must be unset: reasoning is not rendered again."""

    def as_message(self) -> ServedMessage:
        calls = [ServedCall(id=call.id, name=call.function.name, arguments=call.function.arguments) for call in self.tool_calls or []]
        return ServedMessage(role="assistant", content=self.content, name=self.name, tool_calls=calls)


class _Tool(Strict):
    role: Literal["tool"]
    content: Content
    tool_call_id: str

    def as_message(self) -> ServedMessage:
        return ServedMessage(role="tool", content=self.content, tool_call_id=self.tool_call_id)


ChatMessageIn = Annotated[_Instruction | _User | _Assistant | _Tool, Field(discriminator="role")]


def as_messages(messages: Sequence[ChatMessageIn]) -> list[ServedMessage]:
    """Messages for the chat template."""
    return [message.as_message() for message in messages]


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(default={}, max_length=MAX_METADATA)
]
"""Metadata returned with the answer."""


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
    """Same as `max_tokens`; without both, the reply may fill the context."""
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
    """Variables for the chat template."""

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
