"""The tools of a replica: built when a task names them, shared by all its episodes, closed when others push them out.

A kit is what one environment's episodes have: tools by name, each with a check of its arguments.
"""

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from pydantic import JsonValue
from referencing import Registry

from common import spec
from env_svc.tools import registry
from env_svc.tools.calls import Schema
from env_svc.tools.tool import Arguments, Tool, ToolSource, WrongOptions

MOST_BUILT = 256
NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")


@dataclass(frozen=True)
class Kept:
    """A tool with the check of its arguments."""

    tool: Tool
    validator: Draft202012Validator

    def objection(self, arguments: Arguments) -> str | None:
        """What is wrong with these arguments, for the policy to read."""
        error = best_match(self.validator.iter_errors(arguments))
        if error is None:
            return None
        place = ".".join(map(str, error.absolute_path))
        return f"{self.tool.name}: " + (f"'{place}': " if place else "") + error.message[:200]


Kit = Mapping[str, Kept]
"""By the name that the policy calls."""


class Toolbox:
    """Builds tools once and keeps those that were used most recently."""

    def __init__(self) -> None:
        self._built: OrderedDict[tuple[str, str], Sequence[Kept]] = OrderedDict()
        self._sources: dict[tuple[str, str], registry.AnyTool] = {}
        self._lock = asyncio.Lock()

    async def kit(self, wanted: Sequence[str | spec.Tool | Tool]) -> Kit:
        """The tools that are named, by their own names.

        Raises: WrongOptions, ToolUnavailable when a source of tools is away.
        """
        kit: dict[str, Kept] = {}
        for one in wanted:
            for kept in [keep(one)] if isinstance(one, Tool) else await self._named(one):
                name = kept.tool.name
                if name in kit and kit[name].tool is not kept.tool:
                    raise WrongOptions(f"two tools are called '{name}'")
                kit[name] = kept
        return kit

    async def close(self) -> None:
        sources, self._sources = self._sources, {}
        self._built.clear()
        await asyncio.gather(*(source.close() for source in sources.values()))

    async def _named(self, wanted: str | spec.Tool) -> Sequence[Kept]:
        name, options = (wanted, {}) if isinstance(wanted, str) else (wanted.name, wanted.options)
        key = (name, json.dumps(options, sort_keys=True))
        if key not in self._built:
            async with self._lock:
                if key not in self._built:
                    self._built[key] = await self._build(key, name, options)
        self._built.move_to_end(key)
        found = self._built[key]
        if len(self._built) > MOST_BUILT:
            await self._forget_oldest()
        return found

    async def _build(self, key: tuple[str, str], name: str, options: dict[str, JsonValue]) -> Sequence[Kept]:
        # In a thread: what is named for the first time is imported here, and may read an index.
        source = await asyncio.to_thread(registry.build, name, options)
        kept = [keep(tool) for tool in (await source.tools() if isinstance(source, ToolSource) else [source])]
        self._sources[key] = source
        return kept

    async def _forget_oldest(self) -> None:
        key, _ = self._built.popitem(last=False)
        await self._sources.pop(key).close()


def keep(tool: Tool) -> Kept:
    """The tool, checked itself. Raises: WrongOptions."""
    if not NAME.match(tool.name):
        raise WrongOptions(f"a tool cannot be called '{tool.name}': letters, digits, _ and - are allowed, 64 at most")
    try:
        Draft202012Validator.check_schema(tool.parameters)
    except SchemaError as error:
        raise WrongOptions(f"the parameters of tool '{tool.name}' are not a JSON schema: {error.message[:200]}") from None
    # An empty registry: a schema may refer to itself, and never to what would have to be fetched.
    return Kept(tool, Draft202012Validator(tool.parameters, registry=Registry()))


def schemas(kit: Kit) -> dict[str, Schema]:
    """Name → schema of the parameters."""
    return {name: kept.tool.parameters for name, kept in kit.items()}
