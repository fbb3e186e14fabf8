"""The request of `/v1/responses`, which keeps nothing between two of them."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, FailFast, Field, JsonValue, model_validator

from gateway_svc.openai.chat.request import MAX_MESSAGES, Metadata, TextFormat, is_not_padded
from gateway_svc.openai.parsing import Strict, not_honoured
from gateway_svc.openai.responses.items import InputItem, as_messages, one_message
from gateway_svc.openai.sampling.order import Choice, Prompt
from gateway_svc.openai.sampling.settings import SamplingFields
from gateway_svc.openai.sampling.tools import MAX_TOOLS, ResponseTool, ToolChoice

LOGPROBS = "message.output_text.logprobs"


def _is_known(value: JsonValue) -> JsonValue:
    if isinstance(value, list) and (wrong := [one for one in value if one != LOGPROBS]):
        raise not_honoured(f"'{str(wrong[0])[:60]}' is not supported; it may have '{LOGPROBS}'")
    return value


def _as_items(value: JsonValue) -> object:
    return one_message(value) if isinstance(value, str) else value


Included = Annotated[list[Literal["message.output_text.logprobs"]], BeforeValidator(_is_known)]
Items = Annotated[list[InputItem], FailFast(), BeforeValidator(_as_items), Field(min_length=1, max_length=MAX_MESSAGES)]
"""An error names the first that is wrong, so no other is looked for."""


class _Text(Strict):
    format: TextFormat | None = None


class _StreamOptions(Strict):
    include_obfuscation: Annotated[bool, BeforeValidator(is_not_padded)] = False


class ResponseRequest(SamplingFields):
    model: str = Field(min_length=1, max_length=200)
    input: Items
    """A text of the user, or items."""
    instructions: str | None = None
    """First message of the system."""
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
    """Variables of the chat template."""

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
