"""The proxy to a tenant's addresses, alone and as a package sees it."""

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import pytest

from common.bus import Bus
from common.errors import Fatal
from env_svc.calls import Continued
from env_svc.execution.workers import Workers
from env_svc.hosted.confinement import Confinement
from env_svc.hosted.proxy import MAX_CONNECTIONS, MAX_HEAD_BYTES, Address, Proxy, is_public, parsed_address, parsed_addresses
from tests.env.hosted.playing import step
from tests.env.packages.making import guest_wheel, staged, stored
from tests.support.waiting import eventually

SAID = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"


class Server:
    """A server on loopback, for HTTP and for anything that begins like it."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(SAID)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    async with await asyncio.start_server(found.answer, "127.0.0.1") as listening:
        found.port = listening.sockets[0].getsockname()[1]
        yield found


@asynccontextmanager
async def proxying(allowed: Collection[Address], leads_to: str = "", idle_s: float = 60.0) -> AsyncIterator[str]:
    """Path of the socket. `leads_to`: the IP that every name has."""

    async def resolve(host: str, port: int) -> list[str]:
        return [leads_to]

    with tempfile.TemporaryDirectory() as above:
        folder = Path(above, "x" * 120)
        folder.mkdir()
        (Path(above) / "x").symlink_to(folder)
        proxy = Proxy(folder, allowed, resolve, idle_s)
        try:
            yield f"{above}/x/{(await proxy.start()).name}"
        finally:
            await proxy.stop()
            assert list(folder.iterdir()) == []


async def exchanged(path: str, *parts: bytes) -> bytes:
    """All that the proxy answers."""
    reader, writer = await asyncio.open_unix_connection(path)
    for part in parts:
        writer.write(part)
    try:
        return await reader.read()
    finally:
        writer.close()


def connect_to(address: object, then: bytes = b"") -> bytes:
    return f"CONNECT {address} HTTP/1.1\r\nHost: x\r\n\r\n".encode() + then


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("api.Example.org:443", Address("api.example.org", 443)),
        ("api.example.org.:443", Address("api.example.org", 443)),
        ("10.0.0.7:8000", Address("10.0.0.7", 8000)),
        ("[FD00:0::7]:80", Address("fd00::7", 80)),
    ],
)
def test_address_has_one_form(text: str, address: Address) -> None:
    assert parsed_address(text) == address
    assert parsed_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    ["", "x", "x:", ":1", "x:0", "x:65536", "x:1x", "x:٣", "fd00::7:80", "[10.0.0.7]:80", "[x]:1", "127.1:80", "a b:1", "[fe80::1%lo]:1"],
)
def test_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no host:port"):
        parsed_address(text)


def test_list_is_by_tenant() -> None:
    found = parsed_addresses("acme=api.example.org:443, acme=10.0.0.7:8000,globex=[::1]:1")
    assert found == {
        "acme": {Address("api.example.org", 443), Address("10.0.0.7", 8000)},
        "globex": {Address("::1", 1)},
    }
    assert parsed_addresses("") == {}
    for wrong in ("api.example.org:443", "acme=api.example.org", "acme=*:443", "Acme=x:1"):
        with pytest.raises(Fatal, match="MARLAAS_ENV_OWN_ADDRESSES"):
            parsed_addresses(wrong)


@pytest.mark.parametrize(
    ("ip", "public"),
    [
        *(("8.8.8.8", True), ("2001:4860:4860::8888", True), ("127.0.0.1", False), ("10.0.0.1", False), ("169.254.169.254", False)),
        *(("100.100.100.200", False), ("0.0.0.0", False), ("224.0.0.1", False), ("::1", False), ("fe80::1", False), ("fd00::7", False)),
        *(("::ffff:127.0.0.1", False), ("64:ff9b::7f00:1", False), ("2002:7f00:1::", False), ("::ffff:8.8.8.8", True), ("::", False)),
    ],
)
def test_public_addresses_are_those_of_the_internet(ip: str, public: bool) -> None:
    assert is_public(ip_address(ip)) == public


async def test_listed_address_is_reached_by_both_ways(server: Server) -> None:
    address = Address("127.0.0.1", server.port)
    async with proxying([address]) as path:
        tunnel = await exchanged(path, connect_to(address), b"GET /tunnel HTTP/1.1\r\n\r\n")
        assert tunnel == b"HTTP/1.1 200 Connection established\r\n\r\n" + SAID
        plain = f"GET http://{address}/a?b=c HTTP/1.1\r\nHost: {address}\r\nProxy-Connection: keep-alive\r\nX: y\r\n\r\n"
        assert await exchanged(path, plain.encode()) == SAID
    assert server.heads[0] == "GET /tunnel HTTP/1.1\r\n\r\n"
    assert server.heads[1] == f"GET /a?b=c HTTP/1.1\r\nHost: {address}\r\nX: y\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("leads_to", ["127.0.0.1", "169.254.169.254", "10.0.0.7", "::1", "::ffff:127.0.0.1"])
async def test_listed_name_leads_to_no_private_address(server: Server, leads_to: str) -> None:
    async with proxying([Address("api.example.org", server.port)], leads_to) as path:
        answer = await exchanged(path, connect_to(f"api.example.org:{server.port}"))
    assert answer.startswith(b"HTTP/1.1 403 ") and b"leads to no public address" in answer
    assert server.heads == []


async def test_what_is_not_listed_is_refused(server: Server) -> None:
    async with proxying([Address("127.0.0.1", server.port + 1), Address("localhost", 1)], "127.0.0.1") as path:
        for asked in (f"127.0.0.1:{server.port}", f"localhost:{server.port}", f"[::ffff:127.0.0.1]:{server.port}", "169.254.169.254:80"):
            answer = await exchanged(path, connect_to(asked))
            assert answer.startswith(b"HTTP/1.1 403 ") and b"is not among the addresses that the operator lists" in answer
        plain = f"GET http://127.0.0.1:{server.port + 1}@127.0.0.1:{server.port}/ HTTP/1.1\r\n\r\n"
        assert (await exchanged(path, plain.encode())).startswith(b"HTTP/1.1 403 ")
    assert server.heads == []


@pytest.mark.parametrize(
    "garbage",
    [
        *(b"\r\n\r\n", b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"CONNECT  HTTP/1.1\r\n\r\n", b"CONNECT x HTTP/1.1\r\n\r\n"),
        *(b"GET https://127.0.0.1/ HTTP/1.1\r\n\r\n", b"GET http:// HTTP/1.1\r\n\r\n", b"GET http://x:y/ HTTP/1.1\r\n\r\n"),
        *(b"GET http://[/ HTTP/1.1\r\n\r\n", b"CONNECT 127.0.0.1:80 HTTP/1.1\r\nX: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n"),
    ],
)
async def test_garbage_is_refused_in_a_sentence(garbage: bytes) -> None:
    async with proxying([Address("127.0.0.1", 80)]) as path:
        answer = await exchanged(path, garbage)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"this is no request to a proxy" in answer


async def test_server_that_is_not_there_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", free.getsockname()[1])
        async with proxying([address]) as path:
            answer = await exchanged(path, connect_to(address))
    assert answer.startswith(b"HTTP/1.1 502 ") and b"cannot be reached" in answer


async def test_connections_are_bounded_and_end_when_idle(server: Server) -> None:
    async def is_answered(path: str) -> bool:
        return (await exchanged(path, request, b"GET / HTTP/1.1\r\n\r\n")).endswith(b"hello")

    request = connect_to(f"127.0.0.1:{server.port}")
    for idle_s in (600.0, 0.5):
        async with proxying([Address("127.0.0.1", server.port)], idle_s=idle_s) as path:
            held = [await asyncio.open_unix_connection(path) for _ in range(MAX_CONNECTIONS)]
            for _, writer in held:
                writer.write(request)
            opened = [await reader.readuntil(b"\r\n\r\n") for reader, _ in held]
            assert len(opened) == MAX_CONNECTIONS
            if idle_s > 1.0:
                assert await exchanged(path) == b"", "one more is closed at once"
            else:
                assert {await reader.read() for reader, _ in held} == {b""}, "an idle one is ended"
                await eventually(partial(is_answered, path))  # where no pause is longer than `idle_s`
            for _, writer in held:
                writer.close()


CLIENT = """
import http.client, urllib.request, socket
for url in ({urls}):
    try:
        print(urllib.request.urlopen(url, timeout=10).read().decode())
    except Exception as error:
        print(type(error).__name__, error)
tunnel = http.client.HTTPConnection(*urllib.request.getproxies()['https'].removeprefix('http://').split(':'))
tunnel.set_tunnel('127.0.0.1', {port})
try:
    tunnel.request('GET', '/tunnel')
    print(tunnel.getresponse().read().decode())
except Exception as error:
    print(type(error).__name__, error)
try:
    socket.create_connection(('127.0.0.1', {port}), 3)
    print('GOT')
except OSError as error:
    print('raw:', error.strerror)
"""


async def test_package_reaches_its_tenants_addresses_and_nothing_else(
    bus: Bus, workers: Workers, sandbox: Confinement, python: str, tmp_path: Path, server: Server
) -> None:
    other = Server()
    async with await asyncio.start_server(other.answer, "127.0.0.1") as listening:
        other.port = listening.sockets[0].getsockname()[1]
        urls = ", ".join(f"'http://127.0.0.1:{port}/x'" for port in (server.port, other.port))
        code = CLIENT.format(urls=urls, port=server.port)
        addresses = f"acme=127.0.0.1:{server.port},globex=127.0.0.1:{other.port}"
        async with staged(bus, workers, sandbox, python, tmp_path / "packages", addresses=addresses) as stage:
            said: dict[str, list[str]] = {}
            for tenant in ("acme", "globex", "initech"):
                ref = await stored(bus, tenant, guest_wheel())
                (outcome,) = await stage.play(ref, [step(code)], name="own:intruder", tenant=tenant)
                assert isinstance(outcome, Continued)
                said[tenant] = outcome.messages[0].content.split("\n")
    assert said["acme"][0] == "hello" and "403" in said["acme"][1] and said["acme"][2] == "hello" and "GOT" not in said["acme"]
    assert "403" in said["globex"][0] and said["globex"][1] == "hello" and "403" in said["globex"][2] and "GOT" not in said["globex"]
    assert "hello" not in str(said["initech"]) and "GOT" not in said["initech"] and "KeyError" in str(said["initech"])
    assert len(server.heads) == 2 and len(other.heads) == 1
