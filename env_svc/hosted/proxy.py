"""HTTP proxy of one sandbox: it connects to the addresses that the operator lists for the tenant, and to no others.

The proxy listens on a UNIX socket that only this sandbox shows, so it knows the tenant of a request. `CONNECT` opens a tunnel; a plain
request (`GET http://host:port/…`) is passed on with its headers, once per connection. The proxy resolves names itself, and connects to
the IP that it has checked. The list is `MARLAAS_ENV_OWN_ADDRESSES`, entries separated by commas:

    acme=api.example.org:443     tenant acme, this name and port
    acme=10.0.0.7:8000           this IP; an address that is not public can only be listed as an IP
    acme=[fd00::7]:8000

A listed name leads only to public addresses: its owner could otherwise point it at this machine or its neighbours.
"""

import asyncio
import ipaddress
import os
import re
import socket
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from common.errors import Fatal
from common.resilience.event_loop import TaskSet
from env_svc.hosted.forwarder import CHUNK_BYTES

MAX_CONNECTIONS = 64
MAX_HEAD_BYTES = 16 * 1024
HEAD_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 10.0
IDLE_S = 120.0
"""Seconds without a byte either way, after which a connection ends."""
OF_THE_PROXY = ("proxy-connection", "proxy-authorization", "connection", "keep-alive")
"""Headers between client and proxy, which are not passed on."""
RESOLVERS = ThreadPoolExecutor(4, "resolve")
"""Threads that only resolve names, so that a silent name server holds up no other work of the service."""
Resolve = Callable[[str, int], Awaitable[list[str]]]


IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


ENTRY = re.compile(r"^(?P<tenant>[a-z0-9-]+)=(?P<address>\S+)$")


HOST = re.compile(r"^(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_-]{1,63})*\.?$")


NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True)
class Address:
    """A host, as it is listed, and a port."""

    host: str
    """Name in lower case, or an IP in its normal form."""
    port: int

    @property
    def ip(self) -> IPAddress | None:
        """The host as IP address; None if it is a name."""
        return _ip(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parsed_address(text: str) -> Address:
    """The address in `host:port`. Raises: ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or not 1 <= int(port[:6]) <= 65_535:
        raise ValueError(f"'{text:.100}' is no host:port")
    is_bracketed = host.startswith("[") and host.endswith("]")
    ip = _ip(host[1:-1] if is_bracketed else host)
    if ip is not None and (ip.version == 6) == is_bracketed:
        return Address(str(ip), int(port))
    if ip is not None or not HOST.match(host) or host.rstrip(".").rpartition(".")[2].isdecimal():  # 127.1 and 0177.0.0.1 are no names
        raise ValueError(f"'{text:.100}' is no host:port")
    return Address(host.rstrip(".").lower(), int(port))


def parsed_addresses(entries: str) -> Mapping[str, frozenset[Address]]:
    """Tenant → its addresses. Raises: Fatal for a wrong entry."""
    found: dict[str, set[Address]] = defaultdict(set)
    for entry in filter(None, map(str.strip, entries.split(","))):
        match = ENTRY.match(entry)
        try:
            if match is None:
                raise ValueError("no tenant")
            found[match["tenant"]].add(parsed_address(match["address"]))
        except ValueError:
            raise Fatal(f"MARLAAS_ENV_OWN_ADDRESSES: '{entry}' is no tenant=host:port, such as acme=api.example.org:443") from None
    return {tenant: frozenset(addresses) for tenant, addresses in found.items()}


def is_public(ip: IPAddress) -> bool:
    """Whether an IP belongs to the public internet; an IPv6 address that embeds an IPv4 address counts as the latter."""
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    return ip.is_global and not ip.is_multicast


def _ip(text: str) -> IPAddress | None:
    try:
        return None if "%" in text else ipaddress.ip_address(text)
    except ValueError:
        return None


class _Refused(Exception):
    """The proxy refuses the request, with this status."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Proxy:
    """Serves one sandbox from `start` to `stop`."""

    def __init__(self, folder: Path, allowed: Collection[Address], resolve: Resolve | None = None, idle_s: float = IDLE_S) -> None:
        """`folder`: where its socket is made; only the service's user may enter it. `allowed`: the tenant's addresses. `resolve`: name and
        port → IPs; default: as this machine resolves names."""
        self._path = folder / f"proxy-{uuid.uuid4().hex}"
        self._allowed = frozenset(allowed)
        self._resolve = resolve or resolved
        self._idle_s = idle_s
        self._server: asyncio.Server | None = None
        self._connections = TaskSet()

    async def start(self) -> Path:
        """Start to listen; return the path of the socket. Raises: OSError."""
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
        """Target address of a request, and the bytes to send there first; none for a tunnel. Raises: _Refused."""
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
    """Connect to the first IP that answers. Raises: OSError."""
    for ip in ips[:-1]:
        with suppress(OSError):
            return await asyncio.open_connection(ip, port)
    return await asyncio.open_connection(ips[-1], port)


async def _tunnel(
    out: tuple[asyncio.StreamReader, asyncio.StreamWriter], back: tuple[asyncio.StreamReader, asyncio.StreamWriter], idle_s: float
) -> None:
    """Copy in both directions until both have ended, or no byte arrived for `idle_s` seconds."""
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
