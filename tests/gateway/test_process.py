"""The gateway as a process: its start, its end, and servers that go away."""

import asyncio
import re
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter, Response
from starlette.responses import JSONResponse

from common.bus import Bus
from common.runtime.health import Health
from gateway_svc.access import OpenAccess
from gateway_svc.http.application import all_families, application
from gateway_svc.http.errors import Family
from gateway_svc.http.gateway import Drain, Gateway
from gateway_svc.http.server import TimelyProtocol
from gateway_svc.http.strict import StrictRoute
from gateway_svc.problems import Problem
from gateway_svc.settings import GatewaySettings
from marlaas.stack import servers
from tests.gateway.event_streams import STREAM, Stream
from tests.support.buses import HASTY
from tests.support.gateway.deltas import Source
from tests.support.gateway.serving import client, gateway
from tests.support.scheduler.finished import stages
from tests.support.scheduler.stages import World, running_world, spec
from tests.support.servers import running
from tests.support.services import service_process, without_settings
from tests.support.tls import Authority
from tests.support.waiting import eventually


async def _answers(door: httpx.AsyncClient, status: int) -> bool:
    try:
        return (await door.get("/readyz")).status_code == status
    except httpx.HTTPError:
        return False


async def _is_taken(door: httpx.AsyncClient) -> bool:
    return (await door.post("/v1/tasks", json=spec())).status_code in (201, 202)


async def test_sigterm_ends_streams_with_an_error_and_the_process_with_0(world: World, nats_url: str, tmp_path: Path) -> None:
    await world.run("slow-1", until="accepted")
    port, metrics = servers.lasting_port(), servers.lasting_port()
    own = {"PORT": str(port), "DRAIN_S": "5"}
    environment = without_settings() | {f"MARLAAS_GATEWAY_{name}": value for name, value in own.items()}
    environment |= {"MARLAAS_NATS_URL": nats_url, "MARLAAS_HTTP_PORT": str(metrics)}

    with service_process("gateway_svc", environment, tmp_path / "log") as process:
        async with client(f"http://127.0.0.1:{port}") as door:
            await eventually(lambda: _answers(door, 200), 100)
            events = list[str]()
            async with door.stream("GET", "/v1/tasks/slow-1/events", headers=STREAM) as answer:
                async for event in Stream(answer):
                    events.append(event["event"])
                    if len(events) == 1:
                        process.send_signal(signal.SIGTERM)
        status = await asyncio.to_thread(process.wait, 60)

    assert events == ["accepted", "error"]
    assert status == 0
    log = (tmp_path / "log").read_text()
    assert '"event": "listening"' in log
    assert "Traceback" not in log


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7"])
def test_gateway_without_keys_does_not_listen_beyond_this_machine(host: str) -> None:
    environment = without_settings() | {"MARLAAS_GATEWAY_HOST": host}

    ended = subprocess.run([sys.executable, "-m", "gateway_svc"], env=environment, capture_output=True, text=True, timeout=100)

    assert ended.returncode == 2
    assert "MARLAAS_GATEWAY_HOST" in ended.stderr


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"tls_cert": Path("a")}, "need each other"),
        ({"cors_origins": "https://a.example,*"}, "no origin"),
        ({"trusted_proxies": "proxy.example"}, "IPv4 or IPv6"),
        ({"root_path": "marlaas/"}, "pattern"),
    ],
)
def test_wrong_settings(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        GatewaySettings(**settings)


async def test_nats_away_and_back(database_url: str, tmp_path: Path) -> None:
    """Questions and submissions are to be sent again; the gateway is not ready, and is again by itself."""
    port = servers.lasting_port()
    command, url = servers.nats_command(tmp_path / "nats", port, sync="1s"), servers.nats_url(port)
    async with AsyncExitStack() as entered:
        with running(command, port, tmp_path / "nats.log"):
            bus = await entered.enter_async_context(await Bus.connect(url, "test", timings=HASTY))
            await bus.declare()
            address = await entered.enter_async_context(gateway(bus, url, until_ready=False, submit_timeout_s=1.0))
            door = await entered.enter_async_context(client(address))
            await eventually(lambda: _answers(door, 503), 60)
        await eventually(lambda: not bus.is_connected, 60)
        asked, submitted = await door.get("/v1/tasks"), await door.post("/v1/tasks", json=spec())
        verb, job = await door.post("/v1/ask/tasks", json={}), await door.post("/v1/jobs/pause", json={"task": "a", "tenant": "acme"})
        alive, unready = await door.get("/healthz"), await door.get("/readyz")
        with running(command, port, tmp_path / "nats.log"):
            async with running_world(bus, database_url, stages(bus, tmp_path / "made")):
                await eventually(lambda: _answers(door, 200), 100)
                await eventually(lambda: _is_taken(door), 60)

    for answer in (asked, submitted, verb, job):
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert (alive.status_code, unready.status_code) == (200, 503)


async def test_no_write_waits_until_the_client_has_acknowledged_the_last(bus: Bus, nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Header and body are two writes, and so are two events: with Nagle's algorithm the second may wait 40 ms."""
    made, at_once = TimelyProtocol.connection_made, list[int]()

    def connection_made(self: TimelyProtocol, transport: asyncio.Transport) -> None:
        made(self, transport)
        at_once.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(TimelyProtocol, "connection_made", connection_made)
    async with gateway(bus, nats_url, until_ready=False) as address, client(address) as door:
        assert (await door.get("/healthz")).status_code == 200
    assert set(at_once) == {1}


async def test_gateway_ends_tls_by_itself(bus: Bus, nats_url: str, tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "authority")
    cert, key = authority.issue("gateway")
    port = servers.free_port()
    async with gateway(bus, nats_url, until_ready=False, scheme="https", port=port, tls_cert=cert, tls_key=key) as address:
        async with httpx.AsyncClient(base_url=address, verify=ssl.create_default_context(cafile=str(authority.ca)), timeout=60) as door:
            assert (await door.get("/healthz")).status_code == 200
        with pytest.raises(httpx.HTTPError):
            async with httpx.AsyncClient() as door:
                await door.get(f"http://127.0.0.1:{port}/healthz")


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"])
async def test_tls_handshake_that_does_not_end_is_closed(bus: Bus, nats_url: str, tmp_path: Path, sent: bytes) -> None:
    cert, key = Authority.make(tmp_path / "authority").issue("gateway")
    settings = {"tls_cert": cert, "tls_key": key, "timeout_s": 1.0}
    async with gateway(bus, nats_url, until_ready=False, scheme="https", **settings) as address:
        url = httpx.URL(address)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(sent)
        with suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 30)  # asyncio's own limit is 60 s
        writer.close()


async def test_prefix_that_a_proxy_removes(world: World, nats_url: str) -> None:
    async with gateway(world.bus, nats_url, root_path="/marlaas") as address, client(address) as door:
        answer = await door.post("/v1/tasks", json=spec())

    assert answer.headers["location"].startswith("/marlaas/v1/tasks/")


async def test_drain_waits_for_requests_and_refuses_new_ones() -> None:
    drain = Drain()
    with drain.request():
        finishing = asyncio.create_task(drain.finish(60))
        await drain.began.wait()
        assert not finishing.done()
        assert not drain.overdue.is_set()
    await asyncio.wait_for(finishing, 30)

    assert not drain.overdue.is_set()


async def test_what_does_not_end_in_time_is_told_to() -> None:
    drain = Drain()
    with drain.request():
        finishing = asyncio.create_task(drain.finish(0.2))
        await asyncio.wait_for(drain.overdue.wait(), 30)
    await asyncio.wait_for(finishing, 30)


async def test_requests_during_the_drain_are_refused(bus: Bus, nats_url: str) -> None:
    settings = GatewaySettings(nats_url=nats_url)
    found = Gateway(settings, bus, OpenAccess(bus, nats_url), Health(), Source(lambda _: None))
    found.drain.began.set()
    transport = httpx.ASGITransport(application(found, all_families()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as door:
        refused, unready = await door.get("/v1/tasks"), await door.get("/readyz")

    assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (503, "draining", "1")
    assert unready.status_code == 503


async def test_family_has_its_own_errors_and_limits(bus: Bus, nats_url: str) -> None:
    router = APIRouter(route_class=StrictRoute)

    @router.post("/v1/other")
    async def take(body: dict[str, int]) -> dict[str, int]:
        return body

    def render(problem: Problem) -> Response:
        return JSONResponse({"error": problem.detail}, problem.status)

    family = Family(router, render, paths=("/v1/other",), body_bytes={"/v1/other": 3_000_000})
    found = Gateway(GatewaySettings(nats_url=nats_url), bus, OpenAccess(bus, nats_url), Health(), Source(lambda _: None))
    transport = httpx.ASGITransport(application(found, [*all_families(), family]))
    json_type = {"content-type": "application/json"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as door:
        good = await door.post("/v1/other", json={"a": 1})
        large = await door.post("/v1/other", content=b'{"a": 1' + b" " * 2_000_000 + b"}", headers=json_type)
        twice = await door.post("/v1/other", content=b'{"a": 1, "a": 2}', headers=json_type)
        typed = await door.post("/v1/other", json={"a": "x"})
        absent = await door.get("/v1/other/none")

    assert (good.json(), large.json()) == ({"a": 1}, {"a": 1})
    assert "given twice" in twice.json()["error"]
    assert (typed.status_code, absent.status_code) == (400, 404)
    assert typed.json().keys() == absent.json().keys() == {"error"}
