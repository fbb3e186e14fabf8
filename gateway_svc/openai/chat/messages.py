"""Messages of a chat request, as chat templates take them. Text only."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue

from common.messages.serving import ServedCall, ServedMessage
from gateway_svc.openai.parsing import Strict, Unset, not_honoured

MAX_CALLS = 128
"""Maximum calls of a message."""


def _joined(value: JsonValue) -> JsonValue:
    """Parts of a content, joined by line breaks. Raises: PydanticCustomError for a part that is no text."""
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
"""A text, or text parts."""


class _Named(Strict):
    name: str | None = None
    """Passed to the chat template."""


class _Instruction(_Named):
    role: Literal["system", "developer"]
    """`developer` is `system`: chat templates know no other."""
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
    """What was thought is not rendered again: leave it out."""

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
    """For the chat template."""
    return [message.as_message() for message in messages]
