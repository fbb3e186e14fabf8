"""The stateless request of `/v1/responses`. Its items, only text and function calls, become messages."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Discriminator, FailFast, Field, JsonValue, Tag, model_validator

from common.messages.serving import ServedCall, ServedMessage
from gateway_svc.openai.chat.request import MAX_MESSAGES, Metadata, TextFormat, is_not_padded
from gateway_svc.openai.parsing import Strict, Unset, not_honoured
from gateway_svc.openai.sampling.choices import Choice, Prompt
from gateway_svc.openai.sampling.settings import MAX_TOOLS, ResponseTool, SamplingFields, ToolChoice

TEXT_PARTS = ("input_text", "output_text")
HARMLESS_IN_PARTS = ("annotations", "logprobs")
"""Fields of answer parts that clients send back; prompts do not show them."""
Status = Literal["in_progress", "completed", "incomplete"]
KINDS = ("message", "function_call", "function_call_output")
LOGPROBS = "message.output_text.logprobs"


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
    """Id of an answer's item; accepted, but nothing is looked up by it."""
    status: Status | None = None
    """Status of an answer's item; the prompt does not show it."""


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


def _is_supported(item: JsonValue) -> JsonValue:
    match item:
        case {"type": str(kind)} if kind not in KINDS:
            raise not_honoured(f"items of the type '{kind[:40]}' are not supported")
        case _:
            return item


def _kind_of(item: JsonValue) -> str:
    """Type of an item; without a type it is a message."""
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
    """Messages for the chat template. Consecutive calls, together with the assistant's text before them, become one message."""
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
    """Items for a plain text: one user message."""
    return [_Message(role="user", content=text)]


def _is_known(value: JsonValue) -> JsonValue:
    if isinstance(value, list) and (wrong := [one for one in value if one != LOGPROBS]):
        raise not_honoured(f"'{str(wrong[0])[:60]}' is not supported; it may have '{LOGPROBS}'")
    return value


def _as_items(value: JsonValue) -> object:
    return one_message(value) if isinstance(value, str) else value


Included = Annotated[list[Literal["message.output_text.logprobs"]], BeforeValidator(_is_known)]
Items = Annotated[list[InputItem], FailFast(), BeforeValidator(_as_items), Field(min_length=1, max_length=MAX_MESSAGES)]
"""Input items; validation stops at the first invalid one."""


class _Text(Strict):
    format: TextFormat | None = None


class _StreamOptions(Strict):
    include_obfuscation: Annotated[bool, BeforeValidator(is_not_padded)] = False


class ResponseRequest(SamplingFields):
    model: str = Field(min_length=1, max_length=200)
    input: Items
    """A text from the user, or items."""
    instructions: str | None = None
    """First system message."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    tools: list[ResponseTool] = Field(default=[], max_length=MAX_TOOLS)
    tool_choice: ToolChoice = "auto"
    """`none`: the prompt does not show the tools."""
    parallel_tool_calls: bool = True
    text: _Text | None = None
    include: Included = []
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    stream: bool = False
    stream_options: _StreamOptions | None = None
    metadata: Metadata
    chat_template_kwargs: dict[str, JsonValue] = {}
    """Variables for the chat template."""

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.top_logprobs is not None and not self.wants_logprobs:
            raise ValueError(f"top_logprobs needs '{LOGPROBS}' in include")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream to be true")
        return self

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in self.include

    def choice(self) -> Choice:
        tools = [tool.for_template() for tool in self.tools] if self.tool_choice == "auto" else []
        prompt = Prompt(
            messages=as_messages(self.instructions, self.input),
            tools=tools,
            parallel_calls=self.parallel_tool_calls,
            template=self.chat_template_kwargs,
            param="input",
        )
        top = (self.top_logprobs or 0) if self.wants_logprobs else None
        return Choice(prompt, self.settings(self.first_seed, self.max_output_tokens, top))
