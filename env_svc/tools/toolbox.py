"""Tools of a replica: built when a task first names them, shared by all episodes, closed when they are evicted."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from jsonschema.validators import extend
from pydantic import JsonValue
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from common import spec
from common.caches import SingleFlightCache
from common.resilience.event_loop import TaskSet
from common.tool_calls import Schema
from env_svc.tools import registry
from env_svc.tools.tool import Arguments, Tool, ToolSource, ToolUnavailable, WrongOptions

MAX_BUILT = 256
MAX_CONCURRENT_BUILDS = 16
"""Maximum constructors that run concurrently, in threads of their own."""


def _is_whole(_: object, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


Validator: Any = extend(Draft202012Validator, type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_whole))
"""Validator of arguments. It refuses 3.0 as an integer, as tools do. `Any`: the library's validator classes are untyped."""
NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")


@dataclass(frozen=True)
class ValidatedTool:
    """A tool with the validator of its arguments."""

    tool: Tool
    validator: Draft202012Validator

    def error_in(self, arguments: Arguments) -> str | None:
        """The error in these arguments, for the policy to read; None if they are valid."""
        try:
            error = best_match(self.validator.iter_errors(arguments))
        except Exception as failure:  # the schema is valid, and cannot be applied to them: they are too deep for it
            return f"{self.tool.name}: these arguments cannot be checked: {type(failure).__name__}: {failure!s:.100}"
        if error is None:
            return None
        place = ".".join(map(str, error.absolute_path))
        return f"{self.tool.name}: " + (f"'{place}': " if place else "") + error.message[:200]


ToolSet = Mapping[str, ValidatedTool]
"""Tools of one environment's episodes, by the name that the policy calls."""


@dataclass(frozen=True)
class _BuiltTools:
    """The tools built for one name and options: one tool, or all tools of a source."""

    source: registry.AnyTool
    tools: Sequence[ValidatedTool]


class Toolbox:
    """Single-flight LRU cache of tools by name and options; tools are built concurrently."""

    def __init__(self) -> None:
        self._built: SingleFlightCache[tuple[str, str], _BuiltTools] = SingleFlightCache(MAX_BUILT, on_evict=self._close_later)
        self._builders = ThreadPoolExecutor(MAX_CONCURRENT_BUILDS, "build-tool")
        self._closing = TaskSet()

    async def tool_set(self, wanted: Sequence[str | spec.ToolSection | Tool]) -> ToolSet:
        """The wanted tools, by the names that the policy calls. Raises: WrongOptions; ToolUnavailable if a tool source is unavailable."""
        tool_set: dict[str, ValidatedTool] = {}
        for one in wanted:
            for kept in [validated(one)] if isinstance(one, Tool) else await self._named(one):
                name = kept.tool.name
                if name in tool_set and tool_set[name].tool is not kept.tool:
                    raise WrongOptions(f"two tools are called '{name}'")
                tool_set[name] = kept
        return tool_set

    async def close(self) -> None:
        built = await self._built.close()
        await asyncio.gather(*(one.source.close() for one in built), *self._closing)

    async def _named(self, wanted: str | spec.ToolSection) -> Sequence[ValidatedTool]:
        name, options = (wanted, {}) if isinstance(wanted, str) else (wanted.name, wanted.options)
        return (await self._built.get((name, json.dumps(options, sort_keys=True)), lambda: self._build(name, options))).tools

    async def _build(self, name: str, options: dict[str, JsonValue]) -> _BuiltTools:
        # In a thread: the first build of a tool imports its module, and may read an index.
        source = await asyncio.get_running_loop().run_in_executor(self._builders, _build_tool, name, options)
        try:
            tools = [validated(tool) for tool in (await source.tools() if isinstance(source, ToolSource) else [source])]
        except BaseException:
            await source.close()
            raise
        return _BuiltTools(source, tools)

    def _close_later(self, built: _BuiltTools) -> None:
        self._closing.start(built.source.close())


def _build_tool(name: str, options: dict[str, JsonValue]) -> registry.AnyTool:
    """Raises: WrongOptions, ToolUnavailable."""
    try:
        return registry.build(name, options)
    except (WrongOptions, ToolUnavailable):
        raise
    except BaseException as error:  # the boundary to other people's code: SystemExit would end the replica
        raise WrongOptions(f"tool '{name}' cannot be built: {type(error).__name__}: {error}") from error


def validated(tool: Tool) -> ValidatedTool:
    """The tool, with its name and schema checked. Raises: WrongOptions."""
    if not NAME.match(tool.name):
        raise WrongOptions(f"a tool cannot be called '{tool.name}': use letters, digits, _ and -, at most 64")
    try:
        json.dumps(tool.schema, ensure_ascii=False, allow_nan=False).encode()
        Draft202012Validator.check_schema(tool.parameters)
    except (TypeError, ValueError, RecursionError) as error:  # also halves of surrogate pairs
        raise WrongOptions(f"the schema of tool '{tool.name}' is not JSON: {error!s:.200}") from None
    except SchemaError as error:
        raise WrongOptions(f"the parameters of tool '{tool.name}' are not a JSON schema: {error.message[:200]}") from None
    if not isinstance(tool.parameters, dict):  # pyright: ignore[reportUnnecessaryIsInstance]  # `true` is a schema, too
        raise WrongOptions(f"the parameters of tool '{tool.name}' are {tool.parameters}, expected the JSON schema of an object")
    if dangling := _dangling(tool.parameters):
        raise WrongOptions(f"the parameters of tool '{tool.name}' refer to '{dangling:.100}', which is not in them")
    # An empty registry: a schema may refer to itself, and never to another that would have to be fetched.
    return ValidatedTool(tool, Validator(tool.parameters, registry=Registry()))


def _dangling(schema: Schema) -> str | None:
    """A reference that does not resolve within the schema; None if all do."""
    resource = DRAFT202012.create_resource(schema)
    pending = [(resource, Registry[Any]().resolver_with_root(resource))]
    while pending:
        part, resolver = pending.pop()
        for reference in (part.contents.get(name) for name in ("$ref", "$dynamicRef")) if isinstance(part.contents, dict) else ():
            try:
                if isinstance(reference, str):
                    resolver.lookup(reference)
            except Unresolvable:
                return reference
        pending += [(one, resolver.in_subresource(one)) for one in part.subresources()]
    return None


def schemas(tool_set: ToolSet) -> dict[str, Schema]:
    """Name → schema of the parameters."""
    return {name: kept.tool.parameters for name, kept in tool_set.items()}
