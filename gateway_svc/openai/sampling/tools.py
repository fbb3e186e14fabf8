"""Tools of a request, for the chat template."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue

from gateway_svc.openai.fields import CONSTRAINED
from gateway_svc.openai.parsing import Strict, not_honoured

MAX_TOOLS = 128


def _is_loose(value: JsonValue) -> JsonValue:
    if value is True:
        raise not_honoured(CONSTRAINED)
    return value


def _is_free(value: JsonValue) -> JsonValue:
    if value not in ("auto", "none"):
        raise not_honoured(f"it is 'auto' or 'none'; for others, {CONSTRAINED}")
    return value


def _is_a_function(value: JsonValue) -> JsonValue:
    match value:
        case {"type": str(kind)} if kind != "function":
            raise not_honoured(f"tools of the type '{kind[:40]}' are not supported; describe functions, which the caller runs")
        case _:
            return value


NotStrict = Annotated[bool | None, BeforeValidator(_is_loose)]
ToolChoice = Annotated[Literal["auto", "none"], BeforeValidator(_is_free)]


class FunctionIn(Strict):
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    """JSON schema; None: no arguments."""
    strict: NotStrict = None

    def for_template(self) -> dict[str, JsonValue]:
        shown: dict[str, JsonValue] = {"name": self.name}
        if self.description is not None:
            shown["description"] = self.description
        shown["parameters"] = self.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": shown}


class _ChatTool(Strict):
    type: Literal["function"]
    function: FunctionIn


class _ResponseTool(FunctionIn):
    type: Literal["function"]


ChatTool = Annotated[_ChatTool, BeforeValidator(_is_a_function)]
ResponseTool = Annotated[_ResponseTool, BeforeValidator(_is_a_function)]
"""In `/v1/responses` the function's fields are the tool's own."""
