"""Contract of tools: everything that their authors import.

    class Dice(Tool):
        name = "dice"
        description = "Throw dice and see the sum."
        parameters = {"type": "object", "properties": {"count": {"type": "integer", "minimum": 1}}, "required": ["count"]}

        def __init__(self, sides: int = 6) -> None:
            self.sides = sides

        async def call(self, arguments: Arguments) -> str:
            count = cast("int", arguments["count"])
            return str(sum(random.randint(1, self.sides) for _ in range(count)))

The rules: one object serves many episodes concurrently and runs on the service's event loop, so it awaits everything slow and
keeps no state of an episode. Arguments have been checked against `parameters`. A call may run twice if a replica dies
in between. The policy reads the answer: it, or a CallError, explains what the policy did wrong.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from pydantic import JsonValue

from env_svc.errors import CallError, ToolUnavailable, WrongOptions

__all__ = ["Arguments", "CallError", "Tool", "ToolSource", "ToolUnavailable", "WrongOptions"]

Arguments = dict[str, JsonValue]
"""Values by parameter."""


class Tool(ABC):
    """One function that a policy may call. Options of a task are the keyword arguments of the constructor."""

    name: str
    """Letters, digits, `_` and `-`."""
    description: str
    """One or two sentences, read by the policy."""
    parameters: dict[str, JsonValue]
    """JSON schema of an object."""

    @abstractmethod
    async def call(self, arguments: Arguments) -> object:
        """The answer: a text, nothing, or a value that the policy reads as JSON.

        Raises: CallError, ToolUnavailable; anything else is a bug of the tool and voids the attempt, as is a value that is not JSON.
        """

    async def close(self) -> None:  # noqa: B027 - many have none
        """Release its resources; no call follows."""

    @property
    def schema(self) -> dict[str, JsonValue]:
        """The tool's JSON schema, as chat templates take it."""
        return {"type": "function", "function": {"name": self.name, "description": self.description, "parameters": self.parameters}}


class ToolSource(ABC):
    """A source of several tools, for example a server."""

    @abstractmethod
    async def tools(self) -> Sequence[Tool]:
        """Its tools. Raises: ToolUnavailable."""

    async def close(self) -> None:  # noqa: B027
        """Release its resources."""
