"""Tools of MCP servers: the door to the package `mcp`, which is an optional extra.

The operator lists the servers in the file of MARLAAS_ENV_TOOL_SERVERS. A task names one of them; it can neither start a program
nor reach an address of its own choice:

    [files]
    command = ["python", "/srv/files_server.py"]
    environment = { FILES_ROOT = "/srv/files" }      # added to a minimal environment

    [weather]
    url = "http://tools.internal:8000/mcp"

One connection serves all episodes; a server that has ended is restarted for the next call.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError, model_validator

from common.formats.toml_file import TomlFileError, read_tables
from env_svc.options import suggestion
from env_svc.settings import EnvSettings
from env_svc.tools.tool import Arguments, CallError, Tool, ToolSource, ToolUnavailable, WrongOptions

CONNECT_TIMEOUT_S = 30.0
PING_TIMEOUT_S = 5.0


class ToolServer(BaseModel):
    """One table of the file: a command that serves over its standard streams, or a URL."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    url: str = ""

    @model_validator(mode="after")
    def _one_of_them(self) -> "ToolServer":
        if bool(self.command) == bool(self.url):
            raise ValueError("give either a command or a url")
        return self


class Mcp(ToolSource):
    """Tools of one server: all, or the named ones."""

    def __init__(self, server: str, *, tools: list[str] | None = None, time_s: float = 10.0) -> None:
        try:
            import mcp  # noqa: F401  # pyright: ignore[reportUnusedImport]
        except ImportError:
            raise WrongOptions("tool 'mcp' needs the package 'mcp' on the replica: pip install 'marlaas[mcp]'") from None
        self._server, self._chosen, self._time_s = server, tools, time_s
        self._connection = _Connection(server, _server(server))

    async def tools(self) -> Sequence[Tool]:
        client = await self._connection.client()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                listed = {tool.name: tool for page in [page async for page in _pages(client)] for tool in page.tools}
        except Exception as error:
            raise self._connection.lost(client, error) from error
        for name in self._chosen or ():
            if name not in listed:
                raise WrongOptions(f"tool server '{self._server}' has no tool '{name}'{suggestion(name, list(listed))}")
        names = self._chosen if self._chosen is not None else list(listed)
        return [
            _RemoteTool(self._connection, name, listed[name].description or "", listed[name].input_schema, self._time_s) for name in names
        ]

    async def close(self) -> None:
        await self._connection.close()


class _RemoteTool(Tool):
    def __init__(self, connection: "_Connection", name: str, description: str, parameters: dict[str, JsonValue], time_s: float) -> None:
        self.name, self.description, self.parameters = name, description, parameters
        self._connection, self._time_s = connection, time_s

    async def call(self, arguments: Arguments) -> str:
        from mcp import MCPError
        from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult

        client = await self._connection.client()
        try:
            async with asyncio.timeout(self._time_s):
                # Not `Client.call_tool`: it raises if an answer does not fit the server's own schema for it.
                asked = CallToolRequest(params=CallToolRequestParams(name=self.name, arguments=arguments))
                result = await client.session.send_request(asked, CallToolResult)
        except TimeoutError:
            await self._connection.check(client)
            raise CallError(f"{self.name} took more than {self._time_s:g} s") from None
        except MCPError as error:
            await self._connection.check(client)
            raise CallError(str(error)) from None
        except ValidationError as error:
            raise CallError(f"{self.name} returned an invalid MCP result: {error.error_count()} errors") from None
        except Exception as error:
            raise self._connection.lost(client, error) from error
        text = text_of(result)
        if result.is_error:
            raise CallError(text)
        return text


async def _pages(client: Any) -> AsyncIterator[Any]:
    """Pages of the server's list of tools; ends when a cursor repeats."""
    cursors: list[str | None] = [None]
    while (cursor := cursors[-1]) not in cursors[:-1]:
        page = await client.list_tools(cursor=cursor)
        yield page
        if page.next_cursor is None:
            return
        cursors.append(page.next_cursor)


def text_of(result: Any) -> str:
    """A result as text: other content is named, and structured content is used if nothing has text. `Any`: of the package."""
    parts = [_block_text(block) for block in result.content]
    if result.structured_content is not None and not any(block.type == "text" for block in result.content):
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(parts)


def _block_text(block: Any) -> str:
    match block.type:
        case "text":
            return block.text
        case "resource":
            held = block.resource
            return held.text if hasattr(held, "text") else f"(resource {held.uri}, {held.mime_type or 'binary'})"
        case "resource_link":
            return " ".join(filter(None, [f"(resource {block.uri})", block.title or block.name, block.description]))
        case _:
            return f"({block.type}, {block.mime_type})"


class _Connection:
    """A connection to one server, opened on demand. One asyncio task opens and closes it, as the package requires."""

    def __init__(self, name: str, server: ToolServer) -> None:
        self._name, self._server = name, server
        self._client: Any = None  # of the package, which is imported only when needed
        self._connecting: asyncio.Task[Any] | None = None
        self._holder: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()

    async def client(self) -> Any:
        """The connected client; connects if necessary. Raises: ToolUnavailable."""
        if self._client is not None:
            return self._client
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(_seen)
        # Shielded: a caller with less time than the server's start must not cancel it for the next one.
        return await asyncio.shield(self._connecting)

    async def check(self, client: Any) -> None:
        """Returns when the server answers. Raises: ToolUnavailable."""
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                await client.list_tools()
        except Exception as error:
            raise self.lost(client, error) from error

    def lost(self, client: Any, error: BaseException) -> ToolUnavailable:
        """Drop `client`, whose server does not answer, unless it was replaced already; the next call reconnects."""
        if client is self._client:
            self._client = None
            self._leave.set()
        return self._unavailable(error)

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        self._client = None
        await self._end()

    async def _connect(self) -> Any:
        await self._end()
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._holder = asyncio.create_task(self._hold(ready, self._leave))
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                self._client = await ready
        except BaseException as error:
            self._holder.cancel()  # while it connects it ignores `leave`
            if isinstance(error, TimeoutError):
                raise self._unavailable(TimeoutError(f"no answer within {CONNECT_TIMEOUT_S:g} s")) from None
            raise
        return self._client

    async def _end(self) -> None:
        self._leave.set()
        if self._holder is not None:
            await asyncio.gather(self._holder, return_exceptions=True)
            self._holder = None

    def _unavailable(self, error: BaseException) -> ToolUnavailable:
        return ToolUnavailable(f"server '{self._name}': {type(error).__name__}: {error!s:.200}")

    async def _hold(self, ready: "asyncio.Future[Any]", leave: asyncio.Event) -> None:
        from mcp import Client, StdioServerParameters

        server: Any = self._server.url
        if self._server.command:
            command, *arguments = self._server.command
            server = StdioServerParameters(command=command, args=arguments, env=self._server.environment)
        try:
            async with Client(server) as client:
                ready.set_result(client)
                await leave.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(self._unavailable(error))


def _seen(connecting: "asyncio.Task[Any]") -> None:
    """Retrieve a failed connection's exception, so that asyncio does not report it if no caller waits any more."""
    if not connecting.cancelled():
        connecting.exception()


def _server(name: str) -> ToolServer:
    servers = _servers()
    if name not in servers:
        raise WrongOptions(f"no tool server '{name}' on this replica{suggestion(name, list(servers))}")
    return servers[name]


@lru_cache
def _servers() -> dict[str, ToolServer]:
    path = EnvSettings.read().tool_servers
    return servers_of(path) if path.exists() else {}


def servers_of(path: Path) -> dict[str, ToolServer]:
    """Name → server, as the file lists them. Raises: WrongOptions, naming the file."""
    try:
        return read_tables(path, TypeAdapter(dict[str, ToolServer]))
    except TomlFileError as error:
        raise WrongOptions(f"tool servers of this replica: {path.name} {error}") from None
