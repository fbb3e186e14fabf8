"""Tool servers of verifiers, called as functions in this process, without a server.

A `Toolset` is a class whose methods are tools, and whose `state` belongs to the calling episode. Toolsets of a
task are built for every episode, toolsets of a taskset once. Both may keep their episode's data in the state, which graders read.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import JsonValue
from verifiers.v1.mcp.server import _call_state  # pyright: ignore[reportMissingImports]
from verifiers.v1.state import state_cls  # pyright: ignore[reportMissingImports]
from verifiers.v1.utils.decorators import discover_decorated  # pyright: ignore[reportMissingImports]

from common.tool_calls import Schema
from env_svc.contract import EnvironmentUnavailable, ToolCall, WrongOptions

MAX_ANSWER_CHARS = 20_000
"""Maximum length of an answer, as in verifiers' own programs."""
UNAVAILABLE_ERRORS = (ConnectionError, TimeoutError, vf.RolloutError)


class ServedToolset:
    """One toolset whose tools can be called."""

    def __init__(self, toolset: Any) -> None:
        """`Any`: a `vf.Toolset`."""
        self._toolset = toolset
        name = toolset.server_name
        self._prefix = f"{name}_" if name else ""
        self._server = MCPServer(name or type(toolset).__name__)
        for function in discover_decorated(toolset, "tool"):
            given = getattr(function, "tool_name", None) or function.__name__
            self._server.add_tool(_one_signature(function), name=given, description=(function.__doc__ or "").strip() or None)

    async def start(self, data: Any = None) -> None:
        """`data`: the task's data, for a toolset that belongs to a task; None for a toolset of the taskset."""
        await self._toolset.setup()
        if data is not None:
            await self._toolset.setup_task(data)

    async def tools(self) -> dict[str, dict[str, JsonValue]]:
        """Name for the policy → description and parameters."""
        listed = await self._server.list_tools()
        return {self._prefix + tool.name: {"description": tool.description or "", "parameters": tool.input_schema} for tool in listed}

    async def call(self, name: str, arguments: dict[str, JsonValue], state: Any) -> str:
        """The tool's answer, or the text of its error, for the policy to read. Raises: EnvironmentUnavailable."""
        token = _call_state.set(state)
        try:
            result: Any = await self._server.call_tool(name.removeprefix(self._prefix), arguments)
        except ToolError as error:
            if isinstance(error.__cause__, UNAVAILABLE_ERRORS):
                raise EnvironmentUnavailable(f"tool '{name}': {error}") from error
            return str(error)
        finally:
            _call_state.reset(token)
        return "\n".join(block.text if block.type == "text" else f"({block.type})" for block in result.content)

    async def end(self) -> None:
        await self._toolset._exit_stack.aclose()


class EpisodeTools:
    """All tools of one episode."""

    def __init__(self, by_name: Mapping[str, tuple[ServedToolset, dict[str, JsonValue]]], own: Sequence[ServedToolset], state: Any) -> None:
        self._by_name = by_name
        self._own = own
        self._state = state

    @classmethod
    async def of(cls, task: Any, shared: Sequence[ServedToolset], state: Any) -> "EpisodeTools":
        """The taskset's tools and the task's own, built for this episode with its `state`."""
        own = [ServedToolset(toolset) for toolset in task.toolsets(task.config)]
        for served in own:
            await served.start(task.data)
        by_name: dict[str, tuple[ServedToolset, dict[str, JsonValue]]] = {}
        for served in (*shared, *own):
            for name, schema in (await served.tools()).items():
                if name in by_name:
                    raise WrongOptions(f"two tools are called '{name}'")
                by_name[name] = served, schema
        return cls(by_name, own, state)

    @property
    def schemas(self) -> list[dict[str, JsonValue]]:
        """Schemas of the tools, as chat templates take them."""
        return [{"type": "function", "function": {"name": name, **schema}} for name, (_, schema) in self._by_name.items()]

    @property
    def parameters(self) -> dict[str, Schema]:
        return {name: cast("Schema", schema["parameters"]) for name, (_, schema) in self._by_name.items()}

    async def call(self, call: ToolCall) -> str:
        served, _ = self._by_name[call.name]
        text = await served.call(call.name, call.arguments, self._state)
        return text if len(text) <= MAX_ANSWER_CHARS else f"{text[:MAX_ANSWER_CHARS]}... ({len(text)} characters)"

    async def end(self) -> None:
        for served in self._own:
            await served.end()


def check_toolset(toolset: Any, task_type: Any) -> str | None:
    """The reason why this process cannot play the toolset, if it cannot."""
    config, name = toolset.config, f"tool server {type(toolset).__name__}"
    if config.url:
        return f"{name} is at an address of its own: name it in MARLAAS_ENV_TOOL_SERVERS and use the tool 'mcp'"
    if getattr(config, "colocated", False) or not isinstance(config.runtime, vf.SubprocessConfig):
        return f"{name} needs a runtime of verifiers"
    if type(toolset).register is not vf.Toolset.register:
        return f"{name} registers its tools by itself"
    wanted, there = state_cls(type(toolset)), state_cls(task_type)
    if not issubclass(there, wanted):
        return f"{name} keeps {wanted.__name__}, while the state of {task_type.__name__} is {there.__name__}"
    return None


def _one_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as a coroutine function with unchanged parameters."""

    @functools.wraps(function)
    async def called(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    called.__signature__ = inspect.signature(function)  # pyright: ignore[reportAttributeAccessIssue]
    return called
