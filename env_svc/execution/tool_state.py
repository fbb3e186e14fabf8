"""State of an episode's tools, packed around the environment's own state, so that both travel together."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import msgpack
from pydantic import JsonValue

from common.tool_calls import Schema
from env_svc.contract import ToolUsage
from env_svc.hosted.wire import EXTENSION_BYTES

TOOL_STATE_CODE = 77
"""Code of the MessagePack extension that marks a state wrapped with tool state. An environment's own state is never one."""


def _parameters(given: object) -> Schema:
    return cast("Schema", given) if isinstance(given, dict) else {}


@dataclass(frozen=True)
class ToolState:
    """Tool state of one episode."""

    usage: ToolUsage = field(default_factory=ToolUsage)
    names: tuple[str, ...] = ()
    """Names of the tools that its opening requested."""
    own: dict[str, Schema] = field(default_factory=dict[str, Schema])
    """Parameters, by name, of the tools that the environment plays itself."""

    @classmethod
    def at_opening(cls, names: Sequence[str], tools: Sequence[dict[str, JsonValue]]) -> "ToolState":
        """The state after an opening with these names, and these schemas as chat templates take them."""
        functions = [cast("dict[str, Any]", tool.get("function", tool)) for tool in tools]
        return cls(names=tuple(names), own={str(one.get("name", "")): _parameters(one.get("parameters")) for one in functions})

    @classmethod
    def unwrap(cls, state: bytes) -> "tuple[ToolState | None, bytes]":
        """The tool state that is packed around `state`, None without one, and the environment's own state."""
        if state[:1] not in EXTENSION_BYTES:
            return None, state
        unpacked: object = msgpack.unpackb(state)
        if not isinstance(unpacked, msgpack.ExtType) or unpacked.code != TOOL_STATE_CODE:
            return None, state
        calls, errors, names, own, inner = msgpack.unpackb(unpacked.data)
        return cls(ToolUsage(calls, errors), tuple(names), own), inner

    def wrap(self, state: bytes) -> bytes:
        """The state with this tool state around it."""
        inner = msgpack.packb([self.usage.calls, self.usage.errors, list(self.names), self.own, state])
        packed = msgpack.packb(msgpack.ExtType(TOOL_STATE_CODE, cast("bytes", inner)))
        return cast("bytes", packed)

    def counting(self, calls: int, errors: int) -> "ToolState":
        """This tool state with `calls` more answered calls and `errors` more refused ones."""
        return replace(self, usage=ToolUsage(self.usage.calls + calls, self.usage.errors + errors))
