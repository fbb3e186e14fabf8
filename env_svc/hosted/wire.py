"""Frames between the service and a host: four bytes of length, big-endian, then one MessagePack map.

    host → service    {"ready": PROTOCOL, "cpu_bound": …, "components": […], "arguments": […], "operator_options": […]}   first frame
    host → service    {"refused": "…"}   in place of `ready`: a tenant's package cannot be played
    service → host    {"id": 7, "name": …, "options": {…}, "call": {"kind": "Open" | "Step", "value": {…}}}
    service → host    {"cancel": 7}
    host → service    {"id": 7, "outcome": {"kind": "Opened" | "Asked" | "Scored" | "Failed", "value": {…}}}

Values are the dataclasses of `calls.py`, field by field. The service also checks every frame of a host
against the contract: other people's code in the host's process can write any frame.
"""

import asyncio
import struct
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgpack
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from common.formats.wrong_values import first_complaint
from common.spec.sections import MAX_COMPONENTS
from env_svc.calls import Call, Continued, Failed, OpenCall, Opened, Outcome, Scored, StepCall, failed, is_bounded
from env_svc.contract import MAX_NUMBER, MAX_STATE_BYTES

PROTOCOL = 1
MAX_FRAME_BYTES = 64 * 2**20
MAX_REFUSAL_CHARS = 1_000
LENGTH = struct.Struct(">I")
TYPES = {"Open": OpenCall, "Step": StepCall, "Opened": Opened, "Asked": Continued, "Scored": Scored, "Failed": Failed}
"""Classes by their `kind` in frames. Hosts of other versions read these names: rename a class, never its kind."""
KINDS = {of: kind for kind, of in TYPES.items()}
ADAPTERS: dict[str, TypeAdapter[Any]] = {kind: TypeAdapter(of) for kind, of in TYPES.items()}

Frame = dict[str, Any]
"""One frame. `Any`: its fields are listed above."""


MAX_ARGUMENTS = 65_536


MAX_TOOLS = 256


EXTENSION_BYTES = tuple(bytes([first]) for first in (0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8))
"""First bytes of a MessagePack extension."""


MAX_NAME_CHARS = 200


def encode(value: Call | Outcome) -> Frame:
    kind = KINDS[type(value)]
    return {"kind": kind, "value": ADAPTERS[kind].dump_python(value)}


def decode(frame: Frame) -> Any:
    """The value that `encode` was given. Raises: ValueError."""
    return ADAPTERS[frame["kind"]].validate_python(frame["value"])


def pack(frame: Frame) -> bytes:
    body = msgpack.packb(frame)
    assert body is not None
    return LENGTH.pack(len(body)) + body


def read_frame(read: Callable[[int], bytes]) -> Frame | None:
    """The next frame from a blocking stream; None at its end."""
    head = read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    body = read(size)
    return msgpack.unpackb(body, strict_map_key=False) if len(body) == size else None


async def receive_frame(reader: asyncio.StreamReader, max_bytes: int = MAX_FRAME_BYTES) -> Frame:
    """The next frame. Raises: EOFError at the stream's end, ValueError for an invalid frame."""
    (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if size > max_bytes:
        raise ValueError(f"a frame has {size} bytes, at most {max_bytes} are allowed")
    frame: object = msgpack.unpackb(await reader.readexactly(size), strict_map_key=False)
    if not isinstance(frame, dict):
        raise ValueError(f"a frame holds a {type(frame).__name__}, expected a map")
    return frame


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
    """A host's description of its environment's class, before its first call."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    ready: int
    """Protocol of the host."""
    cpu_bound: bool
    components: list[ReportedName] = Field(max_length=MAX_COMPONENTS)
    arguments: list[ReportedName] = Field(max_length=MAX_ARGUMENTS)
    operator_options: list[ReportedName] = Field(max_length=MAX_COMPONENTS)
    declares_options: bool = False


def checked_hello(reported: Mapping[str, object]) -> Hello:
    """Raises: ValueError (one line)."""
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
