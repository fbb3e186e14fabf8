"""Frames that a host reports, held to the contract on this side too: in its process, other people's code can write any frame. Pure."""

from collections.abc import Mapping
from typing import Annotated

import msgpack
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from common.formats.wrong_values import first_complaint
from common.spec.sections import MAX_COMPONENTS
from env_svc.calls import Call, Continued, Failed, OpenCall, Opened, Outcome, Scored, failed, is_bounded
from env_svc.contract import MAX_NUMBER, MAX_STATE_BYTES

MAX_ARGUMENTS = 65_536
MAX_TOOLS = 256
EXTENSION_BYTES = tuple(bytes([first]) for first in (0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8))
"""First bytes of a MessagePack extension."""
MAX_NAME_CHARS = 200


def _is_name(text: str) -> str:
    if len(text) > MAX_NAME_CHARS or not text.isprintable():
        raise ValueError(f"{text[:60]!r} is no name: expected at most {MAX_NAME_CHARS} printable characters")
    return text


ReportedName = Annotated[str, AfterValidator(_is_name)]


class _Parameters(BaseModel):
    model_config = ConfigDict(strict=True)

    properties: dict[str, dict[str, JsonValue] | bool] = {}
    required: list[str] = []


class _Function(BaseModel):
    """A tool's schema, as far as the service reads it."""

    model_config = ConfigDict(strict=True)

    name: ReportedName = ""
    parameters: _Parameters | None = None


class Hello(BaseModel):
    """What a host reports of its environment's class before its first call."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    ready: int
    """Protocol of the host."""
    cpu_bound: bool
    components: list[ReportedName] = Field(max_length=MAX_COMPONENTS)
    arguments: list[ReportedName] = Field(max_length=MAX_ARGUMENTS)
    operator_options: list[ReportedName] = Field(max_length=MAX_COMPONENTS)
    declares_options: bool = False


def checked_hello(reported: Mapping[str, object]) -> Hello:
    """Raises: ValueError, in one line."""
    try:
        return Hello.model_validate(reported)
    except ValidationError as error:
        raise ValueError(first_complaint(error)[:200]) from None


def checked_outcome(reported: object, call: Call) -> Outcome:
    """The outcome of `call`, as `calls.perform` could have made it. Raises: ValueError."""
    if isinstance(reported, Failed):
        return failed(reported.reason, is_infrastructure=reported.is_infrastructure, is_late=reported.is_late)
    if not isinstance(reported, Opened if isinstance(call, OpenCall) else Continued | Scored):
        raise ValueError(f"{type(call).__name__} was answered with {type(reported).__name__}")
    if isinstance(reported, Scored):
        if len(reported.components) > MAX_COMPONENTS:
            raise ValueError(f"a score has {len(reported.components)} components, at most {MAX_COMPONENTS} are allowed")
        if not all(map(is_bounded, (reported.reward, *reported.components.values()))):
            raise ValueError(f"a score is not finite, or beyond {MAX_NUMBER:g}")
        for name in reported.components:
            _is_name(name)
        return reported
    if not reported.messages:
        raise ValueError(f"{type(reported).__name__} has no messages")
    if len(reported.state) > MAX_STATE_BYTES:
        raise ValueError(f"a state has {len(reported.state)} bytes, at most {MAX_STATE_BYTES} can travel with a turn")
    if reported.state[:1] in EXTENSION_BYTES:  # the service puts one around states of episodes with tools
        raise ValueError("a state is a MessagePack extension")
    if isinstance(reported, Opened):
        _check_tools(reported)
    return reported


def _check_tools(opened: Opened) -> None:
    """Raises: ValueError unless the schemas are as chat templates and the parser of calls take them."""
    if len(opened.tools) + len(opened.tool_names) > MAX_TOOLS:
        raise ValueError(f"an opening has {len(opened.tools) + len(opened.tool_names)} tools, at most {MAX_TOOLS} are allowed")
    for tool in opened.tools:
        _Function.model_validate(tool.get("function", tool))
    msgpack.packb(opened.tools)  # raises for values that are nested too deeply to travel
