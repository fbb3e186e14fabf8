"""An MCP server whose tools come in pages and whose answers are odd: `python odd_mcp_server.py`, over its standard streams."""

import os
from typing import Any

import anyio
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ListToolsResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
)

DANGLING = {"type": "object", "properties": {"screen": {"$ref": "#/$defs/Screen"}}}
ANY = {"type": "object", "properties": {"value": True}, "required": ["value"]}
NONE: dict[str, Any] = {"type": "object", "properties": {}}
TEXT = TextContent(type="text", text="plain")
ANSWERS: dict[str, tuple[dict[str, Any], dict[str, Any] | None, CallToolResult]] = {
    "any": (ANY, None, CallToolResult(content=[TEXT])),
    "dangling": (NONE, DANGLING, CallToolResult(content=[TEXT], structured_content={"screen": {"id": 1}})),
    "unfit": (NONE, {"type": "object", "required": ["a"]}, CallToolResult(content=[TEXT], structured_content={"b": 1})),
    "unstructured": (NONE, {"type": "object"}, CallToolResult(content=[TEXT])),
    "structured": (NONE, {"type": "object"}, CallToolResult(content=[], structured_content={"a": [1, "é"]})),
    "half": (NONE, None, CallToolResult(content=[], structured_content={"a": "\ud83d"})),
    "picture": (NONE, None, CallToolResult(content=[ImageContent(type="image", data="aGk=", mime_type="image/png"), TEXT])),
    "sound": (NONE, None, CallToolResult(content=[AudioContent(type="audio", data="aGk=", mime_type="audio/wav")])),
    "link": (NONE, None, CallToolResult(content=[ResourceLink(type="resource_link", name="notes", uri="file:///n",
    description="Of May.")])),
    "text file": (NONE, None, CallToolResult(content=[EmbeddedResource(type="resource", resource=TextResourceContents(uri="a:b",
    text="in it"))])),
    "blob": (NONE, None, CallToolResult(content=[EmbeddedResource(type="resource", resource=BlobResourceContents(uri="a:b",
    blob="aGk="))])),
    "nothing": (NONE, None, CallToolResult(content=[])),
    "wrong": (NONE, None, CallToolResult(content=[TEXT], is_error=True)),
}  # fmt: skip


async def list_tools(_: Any, params: Any) -> ListToolsResult:
    names = list(ANSWERS)
    at = int(params.cursor) if params is not None and params.cursor else 0
    schema, output, _result = ANSWERS[names[at]]
    tool = Tool(name=names[at].replace(" ", "_"), input_schema=schema, output_schema=output)
    following = str(at + 1) if at + 1 < len(names) else None
    return ListToolsResult(tools=[tool], next_cursor="0" if os.environ.get("LOOPS") and at == 2 else following)


async def call_tool(_: Any, params: Any) -> CallToolResult:
    return ANSWERS[params.name.replace("_", " ")][2]


async def main() -> None:
    server = Server("odd", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
