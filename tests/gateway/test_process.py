"""The gateway as a process: its start, its end, and servers that go away."""

import asyncio
import re
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from common.bus import Bus
from gateway_svc.settings import GatewaySettings
from marlaas.stack import servers
from tests.conftest import HASTY, eventually, running
from tests.gateway.serving import client, gateway
from tests.gateway.test_events import STREAM, Stream
from tests.scheduler.finished import stages
from tests.scheduler.stages import World, running_world, spec
from tests.services import service_process, without_settings


async def _answers(door: httpx.AsyncClient, status: int) -> bool:
    try:
        return (await door.get("/readyz")).status_code == status
    except httpx.HTTPError:
        return False


async def test_sigterm_ends_streams_with_an_error_and_the_process_with_0(world: World, nats_url: str, tmp_path: Path) -> None:
    await world.submit("slow-1")
    await world.event("slow-1", "accepted")
    port, metrics = servers.free_port(), servers.free_port()
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
    url = "nats://user:secret-of-mine@10.0.0.1:4222"  # a password makes its holder the operator: every user would be
    environment = without_settings() | {"MARLAAS_GATEWAY_HOST": host, "MARLAAS_NATS_URL": url}

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
    port = servers.free_port()
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
        alive, unready = await door.get("/healthz"), await door.get("/readyz")
        with running(command, port, tmp_path / "nats.log"):
            async with running_world(bus, database_url, stages(bus, tmp_path / "made")):
                await eventually(lambda: _answers(door, 200), 100)
                again = await door.post("/v1/tasks", json=spec())

    for answer in (asked, submitted):
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert (alive.status_code, unready.status_code) == (200, 503)
    assert again.status_code in (201, 202)
