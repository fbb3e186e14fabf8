"""Items of a request to `/v1/responses`, as messages for chat templates. Text and calls of functions only."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, JsonValue, Tag

from common.messages.serving import ServedCall, ServedMessage
from gateway_svc.openai.parsing import Strict, Unset, not_honoured

TEXT_PARTS = ("input_text", "output_text")
HARMLESS_IN_PARTS = ("annotations", "logprobs")
"""Fields of the answers' parts that clients send back, and that no prompt shows."""
Status = Literal["in_progress", "completed", "incomplete"]


def _joined(value: JsonValue) -> JsonValue:
    return "\n".join(map(_text_of, value)) if isinstance(value, list) else value


def _text_of(part: JsonValue) -> str:
    match part:
        case {"type": str(kind), "text": str(text), **more} if kind in TEXT_PARTS:
            if wrong := [name for name, found in more.items() if found is not None and name not in HARMLESS_IN_PARTS]:
                raise not_honoured(f"a part has no field '{wrong[0][:40]}' here")
            if more.get("annotations"):
                raise not_honoured("annotations are not supported")
            return text
        case {"type": str(kind)}:
            raise not_honoured(f"parts of the type '{kind[:40]}' are not supported; prompts are text")
        case _:
            raise ValueError("each part is an object with a type")


Content = Annotated[str, BeforeValidator(_joined)]


class _Item(Strict):
    id: str | None = None
    """Of an answer's item; nothing is found by it."""
    status: Status | None = None
    """Of an answer's item; the prompt does not show it."""


class _Message(_Item):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    phase: Unset = None


class _FunctionCall(_Item):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    caller: Unset = None
    namespace: Unset = None


class _FunctionOutput(_Item):
    type: Literal["function_call_output"]
    call_id: str
    output: Content
    caller: Unset = None


KINDS = ("message", "function_call", "function_call_output")


def _is_supported(item: JsonValue) -> JsonValue:
    match item:
        case {"type": str(kind)} if kind not in KINDS:
            raise not_honoured(f"items of the type '{kind[:40]}' are not supported")
        case _:
            return item


def _kind_of(item: JsonValue) -> str:
    """A message need not say that it is one."""
    match item:
        case {"type": str(kind)}:
            return kind
        case _:
            return "message"


InputItem = Annotated[
    Annotated[_Message, Tag("message")]
    | Annotated[_FunctionCall, Tag("function_call")]
    | Annotated[_FunctionOutput, Tag("function_call_output")],
    Discriminator(_kind_of),
    BeforeValidator(_is_supported),
]


def as_messages(instructions: str | None, given: Sequence[InputItem]) -> list[ServedMessage]:
    """For the chat template. Calls that follow each other, or the assistant's text, are one message of it."""
    found = [] if instructions is None else [ServedMessage(role="system", content=instructions)]
    for item in given:
        match item:
            case _Message():
                role = "system" if item.role == "developer" else item.role
                found.append(ServedMessage(role=role, content=item.content))
            case _FunctionCall():
                call = ServedCall(id=item.call_id, name=item.name, arguments=item.arguments)
                if not found or found[-1].role != "assistant":
                    found.append(ServedMessage(role="assistant", tool_calls=[]))
                found[-1].tool_calls.append(call)
            case _FunctionOutput():
                found.append(ServedMessage(role="tool", content=item.output, tool_call_id=item.call_id))
    return found


def one_message(text: str) -> list[InputItem]:
    """The items that a text stands for."""
    return [_Message(role="user", content=text)]
