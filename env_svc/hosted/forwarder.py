"""Forwarder inside a sandbox: listens on a port of the sandbox's loopback, and forwards to the socket of the service's proxy.

The sandbox has no network, and sees nothing of the service but this socket. The proxy behind the socket decides which addresses may be
reached (`proxy.py`). The forwarder has a thread and event loop of its own in the host, since an environment may block the host's loop.
"""

import asyncio
import threading
from collections.abc import Mapping

CHUNK_BYTES = 64 * 1024


def forward(socket: str) -> int:
    """Listen until the process ends; returns the port."""
    ports: list[int] = []
    listening = threading.Event()

    async def run() -> None:
        async with await asyncio.start_server(lambda reader, writer: _connected(reader, writer, socket), "127.0.0.1", 0) as server:
            ports.append(server.sockets[0].getsockname()[1])
            listening.set()
            await server.serve_forever()

    threading.Thread(target=lambda: asyncio.run(run()), name="forwarder", daemon=True).start()
    listening.wait()
    return ports[0]


def proxy_variables(port: int) -> Mapping[str, str]:
    """Environment variables that tell HTTP clients to use the forwarder at `port` as their proxy."""
    url = f"http://127.0.0.1:{port}"
    return {name: url for upper in ("HTTP_PROXY", "HTTPS_PROXY") for name in (upper, upper.lower())}


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy from `reader` to `writer` until `reader` ends; then send an end of file."""
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, socket: str) -> None:
    try:
        out_reader, out_writer = await asyncio.open_unix_connection(socket)
    except OSError:
        writer.close()
        return
    try:
        await asyncio.gather(relay(reader, out_writer), relay(out_reader, writer))
    except OSError:
        pass
    finally:
        out_writer.close()
        writer.close()
