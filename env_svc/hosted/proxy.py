"""HTTP proxy of one sandbox: it connects to the addresses that the operator lists for the tenant, and to no others.

It listens on a UNIX socket that the sandbox shows, so which tenant asks is known by the socket. `CONNECT` opens a tunnel; a plain request
(`GET http://host:port/…`) is passed on with its headers, once per connection. It resolves names itself and connects to the address that
it has looked at.
"""

import asyncio
import ipaddress
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from common.resilience.event_loop import TaskSet
from env_svc.hosted.addresses import Address, is_public, parsed_address
from env_svc.hosted.forwarder import CHUNK_BYTES

MAX_CONNECTIONS = 64
MAX_HEAD_BYTES = 16 * 1024
HEAD_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 10.0
IDLE_S = 120.0
"""Seconds without a byte either way, after which a connection ends."""
OF_THE_PROXY = ("proxy-connection", "proxy-authorization", "connection", "keep-alive")
"""Headers that are not passed on."""
RESOLVERS = ThreadPoolExecutor(4, "resolve")
"""Threads of their own: a name server that is silent holds up no other work of the service."""
Resolve = Callable[[str, int], Awaitable[list[str]]]


class _Refused(Exception):
    """The request is answered with this status."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Proxy:
    """Serves one sandbox from `start` to `stop`."""

    def __init__(self, folder: Path, allowed: Collection[Address], resolve: Resolve | None = None, idle_s: float = IDLE_S) -> None:
        """`folder`: of its socket; the service's user alone may enter it. `allowed`: the tenant's addresses. `resolve`: name and port →
        IPs; default: the machine's."""
        self._path = folder / f"proxy-{uuid.uuid4().hex}"
        self._allowed = frozenset(allowed)
        self._resolve = resolve or resolved
        self._idle_s = idle_s
        self._server: asyncio.Server | None = None
        self._connections = TaskSet()

    async def start(self) -> Path:
        """Its socket. Raises: OSError."""
        listening = socket.socket(socket.AF_UNIX)
        folder = os.open(self._path.parent, os.O_PATH)
        try:
            listening.bind(f"/proc/self/fd/{folder}/{self._path.name}")  # a socket's own path has at most 107 characters
        finally:
            os.close(folder)
        self._path.chmod(0o666)  # the sandbox has a user of its own
        self._server = await asyncio.start_unix_server(self._accept, sock=listening, limit=MAX_HEAD_BYTES)
        return self._path

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            writer.close()
            return
        self._connections.start(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: asyncio.StreamWriter | None = None
        try:
            address, first = await self._requested(reader)
            answers, upstream = await self._connect(address)
            if first:
                upstream.write(first)
            else:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await _tunnel((reader, upstream), (answers, writer), self._idle_s)
        except _Refused as refused:
            body = f"{refused}\n".encode()
            head = ["Content-Type: text/plain; charset=utf-8", f"Content-Length: {len(body)}", "Connection: close"]
            writer.write("\r\n".join([f"HTTP/1.1 {refused.status}", *head, "", ""]).encode() + body)
        except (OSError, TimeoutError):
            pass
        finally:
            for one in (upstream, writer):
                if one is not None:
                    one.close()

    async def _requested(self, reader: asyncio.StreamReader) -> tuple[Address, bytes]:
        """The address of a request, and what is to be sent there first: nothing for a tunnel. Raises: _Refused."""
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *headers = head.removesuffix("\r\n\r\n").split("\r\n")
            method, target, version = line.split(" ")
            if method == "CONNECT":
                return parsed_address(target), b""
            url = urlsplit(target)
            if url.scheme != "http" or not version.startswith("HTTP/1."):
                raise ValueError(f"'{target[:100]}' is no http:// address; for https:// use CONNECT")
            authority = url.netloc.rpartition("@")[2]
            address = parsed_address(authority if url.port else f"{authority.removesuffix(':')}:80")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError) as error:
            raise _Refused("400 Bad Request", f"this is no request to a proxy: {str(error)[:200]}") from None
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        kept = [header for header in headers if header.partition(":")[0].strip().lower() not in OF_THE_PROXY]
        return address, "\r\n".join([f"{method} {path} HTTP/1.1", *kept, "Connection: close", "", ""]).encode("latin-1")

    async def _connect(self, address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises: _Refused."""
        if address not in self._allowed:
            listed = ", ".join(sorted(map(str, self._allowed)))
            raise _Refused("403 Forbidden", f"{address} is not among the addresses that the operator lists for this tenant: {listed}")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                ips = [address.host] if address.ip else await self._resolve(address.host, address.port)
                public = [ip for ip in ips if address.ip or is_public(ipaddress.ip_address(ip))]
                if not public:
                    reason = f"{address} leads to no public address; one of a private network is listed as that IP"
                    raise _Refused("403 Forbidden", reason)
                return await _opened(public, address.port)
        except (OSError, TimeoutError) as error:
            raise _Refused("502 Bad Gateway", f"{address} cannot be reached: {str(error) or 'it takes too long'}") from None


async def resolved(host: str, port: int) -> list[str]:
    """IPs of a name, as this machine resolves it. Raises: OSError."""
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    return [str(one[4][0]) for one in await asyncio.get_running_loop().run_in_executor(RESOLVERS, look_up)]


async def _opened(ips: Sequence[str], port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the first that answers. Raises: OSError."""
    for ip in ips[:-1]:
        with suppress(OSError):
            return await asyncio.open_connection(ip, port)
    return await asyncio.open_connection(ips[-1], port)


async def _tunnel(
    out: tuple[asyncio.StreamReader, asyncio.StreamWriter], back: tuple[asyncio.StreamReader, asyncio.StreamWriter], idle_s: float
) -> None:
    """Copy both ways until both have ended, or none has had a byte for `idle_s`."""
    heard_at = asyncio.get_running_loop().time()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard_at
        while data := await reader.read(CHUNK_BYTES):
            heard_at = asyncio.get_running_loop().time()
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    async def watch() -> None:
        while (left_s := heard_at + idle_s - asyncio.get_running_loop().time()) > 0:  # noqa: ASYNC110  it sleeps for as long as is left
            await asyncio.sleep(left_s)

    copying = asyncio.gather(copy(*out), copy(*back))
    watching = asyncio.ensure_future(watch())
    try:
        await asyncio.wait([copying, watching], return_when=asyncio.FIRST_COMPLETED)
        if copying.done():
            copying.result()
    finally:
        watching.cancel()
        copying.cancel()
        await asyncio.gather(watching, copying, return_exceptions=True)
