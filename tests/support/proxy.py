"""A wire between a client and a server: a TCP proxy on loopback that can be cut, slowed, throttled, silenced and half closed."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random

HOST = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: closing sends RST, as when a host loses its state."""


@dataclass(eq=False)
class _ProxiedConnection:
    """Two streams, client and server, and a runner for each direction."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    ended: set[asyncio.StreamWriter] = field(default_factory=set[asyncio.StreamWriter])
    """Streams that were half closed."""

    def end(self, writer: asyncio.StreamWriter) -> None:
        if writer not in self.ended:
            self.ended.add(writer)
            with suppress(OSError):
                writer.write_eof()

    def reset(self) -> None:
        for writer in (self.client, self.server):
            with suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            writer.transport.abort()


@dataclass(eq=False)
class Wire:
    """One listening port, and the present treatment of its traffic."""

    name: str
    target_port: int
    port: int = 0
    refuses: bool = False
    """Connections are reset as soon as they are made."""
    latency_s: float = 0.0
    """Delay of each chunk, in each direction; chunks keep their order."""
    bytes_per_s: float = 0.0
    """Rate of each direction of each connection; 0: unlimited."""
    _open: set[_ProxiedConnection] = field(default_factory=set["_ProxiedConnection"])
    _flows: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Wire"]:
        self._flows.set()
        server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()

    def cut(self) -> None:
        """Reset every connection; new ones may be made."""
        for connection in list(self._open):
            connection.reset()

    def silence(self) -> None:
        """Stop all traffic; connections stay open."""
        self._flows.clear()

    def speak(self) -> None:
        self._flows.set()

    def half_close(self, random: Random) -> None:
        """Half close each connection: one side sees its end, but may still send."""
        for connection in list(self._open):
            connection.end(random.choice((connection.client, connection.server)))

    def mend(self) -> None:
        """Restore normal traffic."""
        self.refuses, self.latency_s, self.bytes_per_s = False, 0.0, 0.0
        self.speak()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.refuses:
                raise ConnectionRefusedError
            from_server, to_server = await asyncio.open_connection(HOST, self.target_port)
        except OSError:
            writer.transport.abort()
            return
        connection = _ProxiedConnection(writer, to_server)
        self._open.add(connection)
        try:
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._pass(connection, reader, to_server))
                directions.create_task(self._pass(connection, from_server, writer))
        except* OSError:
            pass
        finally:
            self._open.discard(connection)
            connection.reset()

    async def _pass(self, connection: _ProxiedConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            if self.latency_s:
                await asyncio.sleep(self.latency_s)
            if self.bytes_per_s:
                await asyncio.sleep(len(chunk) / self.bytes_per_s)
            await self._flows.wait()
            if writer not in connection.ended:
                writer.write(chunk)
                await writer.drain()
        connection.end(writer)
