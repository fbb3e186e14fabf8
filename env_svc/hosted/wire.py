"""Frames between the service and a host: four bytes of length, big-endian, then one MessagePack map.

    host → service    {"ready": PROTOCOL, "cpu_bound": …, "components": […], "arguments": […], "operator_options": […]}   first frame
    host → service    {"refused": "…"}   in its place, of a tenant's package that cannot be played
    service → host    {"id": 7, "name": …, "options": {…}, "call": {"kind": "Open" | "Step", "value": {…}}}
    service → host    {"cancel": 7}
    host → service    {"id": 7, "outcome": {"kind": "Opened" | "Asked" | "Scored" | "Failed", "value": {…}}}

Values are the dataclasses of `calls.py`, field by field.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import msgpack
from pydantic import TypeAdapter

from env_svc.calls import Call, Continued, Failed, OpenCall, Opened, Outcome, Scored, StepCall

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
