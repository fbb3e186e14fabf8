"""An MCP server for the tests: `python mcp_server.py`, over its standard streams."""

import os
import time
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("birds")


@server.tool()
def call(bird: str, times: int = 1) -> str:
    """The bird's call."""
    return {"owl": "hoo"}[bird] * times


@server.tool()
def doze(seconds: float) -> str:
    """Takes long."""
    time.sleep(seconds)
    return "awake"


@server.tool()
def variables() -> str:
    """Environment variables that the server sees."""
    return " ".join(sorted(os.environ))


@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(3)


if __name__ == "__main__":
    if "STARTED" in os.environ:
        with Path(os.environ["STARTED"]).open("a") as started:
            started.write("started\n")
        time.sleep(float(os.environ["STARTS_IN_S"]))
    server.run("stdio")
