"""Tools by name.

    calculator               built in, or an entry point of the group `marlaas.tools`
    my_package.tools:Dice    <module>:<attribute>

A name resolves to a subclass of `Tool` or `ToolSource`, or to nothing.
"""

import importlib
import inspect
from functools import cache, lru_cache
from importlib.metadata import entry_points

from pydantic import JsonValue

from env_svc.errors import WrongOptions
from env_svc.options import options_of, suggestion, validated_options
from env_svc.tools.tool import Tool, ToolSource

ENTRY_POINTS = "marlaas.tools"
BUILT_IN = {
    "calculator": "env_svc.tools.calculator:CalculatorTool",
    "mcp": "env_svc.tools.mcp:Mcp",
    "python": "env_svc.tools.python:Python",
    "search": "env_svc.tools.search:Search",
}

AnyTool = Tool | ToolSource


class UnknownTool(WrongOptions):
    """No tool has this name, or the name resolves to something else."""


def names() -> list[str]:
    """Names of all tools except those named `module:attribute`, which cannot be listed."""
    return sorted(_installed())


@lru_cache(maxsize=1024)
def find(name: str) -> type[Tool] | type[ToolSource]:
    """The class that `name` resolves to. Raises: UnknownTool, with near matches."""
    path = _installed().get(name, name)
    module, colon, attribute = path.partition(":")
    if not colon:
        raise UnknownTool(f"no tool '{name}'{suggestion(name, names())}")
    try:
        found: object = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except BaseException as error:  # a module that is imported may raise anything: SystemExit would end the replica
        raise UnknownTool(f"tool '{name}' cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Tool | ToolSource)) or inspect.isabstract(found):
        raise UnknownTool(f"'{name}' is not a tool: expected a subclass of env_svc.tools.tool.Tool, found {found!r:.80}")
    return found


def build(name: str, options: dict[str, JsonValue]) -> AnyTool:
    """The tool `name` with `options`. Raises: UnknownTool, WrongOptions."""
    found = find(name)
    known = options_of(found)
    if known is None:
        raise WrongOptions(f"tool '{name}' takes any option (**): name those that a task may give in its constructor")
    values = validated_options(f"tool '{name}'", known, options)
    try:
        return found(**values)
    except WrongOptions:
        raise
    except (ValueError, TypeError) as error:
        raise WrongOptions(f"tool '{name}' refuses its options: {error}") from error


@cache
def _installed() -> dict[str, str]:
    return {**{point.name: point.value for point in entry_points(group=ENTRY_POINTS)}, **BUILT_IN}
