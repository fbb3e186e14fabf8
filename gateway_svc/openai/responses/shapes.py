"""Shapes of `/v1/responses`: the response, its items, and the events of a stream."""

from typing import Literal

from pydantic import BaseModel, JsonValue

from gateway_svc.openai.chat.answer import TopLogprob

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class PartLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class OutputText(BaseModel):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[JsonValue] = []
    """Always empty."""
    logprobs: list[PartLogprob] = []


class ReasoningText(BaseModel):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class MessageItem(BaseModel):
    type: Literal["message"] = "message"
    id: str
    role: Literal["assistant"] = "assistant"
    status: ItemStatus
    content: list[OutputText]


class ReasoningItem(BaseModel):
    type: Literal["reasoning"] = "reasoning"
    id: str
    status: ItemStatus
    summary: list[JsonValue] = []
    """Always empty."""
    content: list[ReasoningText]


class FunctionCallItem(BaseModel):
    type: Literal["function_call"] = "function_call"
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


OutputItem = MessageItem | ReasoningItem | FunctionCallItem


class InputDetails(BaseModel):
    cached_tokens: int
    cache_write_tokens: int = 0
    """Always 0: cache writes are not charged."""


class OutputDetails(BaseModel):
    reasoning_tokens: int = 0
    """Always 0: reasoning tokens are part of `output_tokens` and not counted separately."""


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails = OutputDetails()
    total_tokens: int


class FunctionTool(BaseModel):
    type: Literal["function"] = "function"
    name: str
    description: str | None
    parameters: dict[str, JsonValue] | None
    strict: Literal[False] = False


class ResponseError(BaseModel):
    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class Incomplete(BaseModel):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class TextFormatOf(BaseModel):
    type: Literal["text"] = "text"


class TextSettings(BaseModel):
    format: TextFormatOf = TextFormatOf()


class ResponseOf(BaseModel):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseError | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: None = None
    store: Literal[False] = False
    temperature: float
    text: TextSettings = TextSettings()
    tool_choice: Literal["auto", "none"]
    tools: list[FunctionTool]
    top_p: float
    top_logprobs: int
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None
    metadata: dict[str, str]
    system_fingerprint: str | None
    """Not part of OpenAI's responses; same as in chat completions."""


class Event(BaseModel, frozen=True):
    """A stream event; `type` is also the name of the server-sent event."""

    type: str
    sequence_number: int


class ResponseEvent(Event, frozen=True):
    type: Literal["response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed"]
    response: ResponseOf


class ItemEvent(Event, frozen=True):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class _InItem(Event, frozen=True):
    output_index: int
    item_id: str


class PartEvent(_InItem, frozen=True):
    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int = 0
    part: OutputText | ReasoningText


class TextDeltaEvent(_InItem, frozen=True):
    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    content_index: int = 0
    delta: str
    logprobs: list[PartLogprob]


class TextDoneEvent(_InItem, frozen=True):
    type: Literal["response.output_text.done"] = "response.output_text.done"
    content_index: int = 0
    text: str
    logprobs: list[PartLogprob]


class ReasoningDeltaEvent(_InItem, frozen=True):
    type: Literal["response.reasoning_text.delta"] = "response.reasoning_text.delta"
    content_index: int = 0
    delta: str


class ReasoningDoneEvent(_InItem, frozen=True):
    type: Literal["response.reasoning_text.done"] = "response.reasoning_text.done"
    content_index: int = 0
    text: str


class ArgumentsDeltaEvent(_InItem, frozen=True):
    type: Literal["response.function_call_arguments.delta"] = "response.function_call_arguments.delta"
    delta: str


class ArgumentsDoneEvent(_InItem, frozen=True):
    type: Literal["response.function_call_arguments.done"] = "response.function_call_arguments.done"
    name: str
    arguments: str
