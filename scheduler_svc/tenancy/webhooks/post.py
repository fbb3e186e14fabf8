"""Post: one HTTP request to an address that is checked after its name was resolved, and the status of its answer.

The connection is made to the very address that was checked, so that a name that resolves to another one a moment later does not help.
Only the first line of an answer is read: its headers, among them the target of a redirection, and its body are never looked at.
"""

import asyncio
import ipaddress
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from urllib.parse import SplitResult

from common.errors import Reject
from scheduler_svc.tenancy.webhooks.addresses import PORTS, Policy, literal_of, parse_url

TIMEOUT_S = 10.0
"""Maximum time of an attempt, look-up of the name included."""
MAX_LINE_BYTES = 4096
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?\r?\n")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class Failed(Exception):
    """No answer; the text says why, and nothing of what the receiver sent."""


async def resolved(host: str, port: int) -> list[str]:
    """Addresses of a name, as the system knows them. Raises: OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)  # SOCK_STREAM
    return [str(address[4][0]) for address in found]


class Post:
    """Posts bodies. `tls`: in place of the system's certificates; `resolve`: in place of its names."""

    def __init__(self, policy: Policy, *, timeout_s: float = TIMEOUT_S, tls: ssl.SSLContext | None = None, resolve: Resolve = resolved):
        self._policy = policy
        self._timeout_s = timeout_s
        self._tls = tls or ssl.create_default_context()
        self._resolve = resolve

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        """Status of the answer. Raises: Failed."""
        try:
            parts = parse_url(url, self._policy)
            async with asyncio.timeout(self._timeout_s):
                return await self._send(parts, headers, body)
        except Reject as error:
            raise Failed(str(error)) from None
        except TimeoutError:
            raise Failed(f"no answer within {self._timeout_s:g} s") from None
        except ssl.SSLError as error:
            raise Failed(f"TLS: {error.reason or 'it failed'}"[:200]) from None
        except (OSError, UnicodeError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            raise Failed("the host does not answer, or not by HTTP") from None

    async def _send(self, parts: SplitResult, headers: Mapping[str, str], body: bytes) -> int:
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        address = await self._address(host, port)
        context = self._tls if parts.scheme == "https" else None
        reader, writer = await asyncio.open_connection(
            address, port, ssl=context, server_hostname=host if context else None, limit=MAX_LINE_BYTES
        )
        try:
            writer.write(_head(parts, headers, len(body)) + body)
            await writer.drain()
            return await _status(reader)
        finally:
            writer.transport.abort()  # neither waits for the rest of an answer nor for the end of TLS
            with suppress(OSError, ssl.SSLError):
                await writer.wait_closed()

    async def _address(self, host: str, port: int) -> str:
        """Raises: Failed when any address of the name is not permitted, so that names cannot be tried out one address at a time."""
        literal = literal_of(host)
        found = [str(literal)] if literal is not None else await self._resolve(host, port)
        for each in found:
            if not self._policy.permits(ipaddress.ip_address(each.partition("%")[0])):
                raise Failed("the host has no public address")
        if not found:
            raise Failed("the host has no address")
        return found[0]


def _head(parts: SplitResult, headers: Mapping[str, str], size: int) -> bytes:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = {
        "Host": parts.netloc,
        "Content-Type": "application/json",
        "Content-Length": str(size),
        "User-Agent": "marlaas-webhook/1",
        "Connection": "close",
        **headers,
    }
    return "\r\n".join([f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in lines.items()), "", ""]).encode("ascii")


async def _status(reader: asyncio.StreamReader) -> int:
    """Raises: Failed; LimitOverrunError; IncompleteReadError."""
    found = _STATUS.fullmatch(await reader.readuntil(b"\n"))
    if found is None:
        raise Failed("the host does not answer by HTTP")
    return int(found[1])
