"""nginx and Caddy before a gateway, with the files of deploy/proxy: TLS, a prefix, events as they come, and errors of the gateway's own."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from gateway_svc.settings import GatewaySettings
from marlaas.stack import servers
from tests.gateway.event_streams import STREAM, Stream
from tests.support.gateway.serving import gateway
from tests.support.paths import ROOT
from tests.support.scheduler.stages import World, spec
from tests.support.tls import Authority

EXAMPLES = ROOT / "deploy" / "proxy"
CERTIFICATE, KEY = "/etc/ssl/marlaas/cert.pem", "/etc/ssl/marlaas/key.pem"
NGINX = """\
daemon off;
error_log {folder}/error.log;
pid {folder}/pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""
CADDY = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n"


@dataclass(frozen=True)
class Site:
    """Where a proxy listens, what it stands before, and its certificate."""

    folder: Path
    port: int
    upstream: str
    cert: Path
    key: Path

    def example(self, name: str, **changes: str) -> str:
        """A file of deploy/proxy with this test's addresses in place of its own."""
        text = (EXAMPLES / name).read_text()
        for old, new in {CERTIFICATE: str(self.cert), KEY: str(self.key), "127.0.0.1:8000": self.upstream, **changes}.items():
            assert old in text, f"{name} has no {old}"
            text = text.replace(old, new)
        return text


def nginx(site: Site) -> list[str]:
    (site.folder / "site.conf").write_text(site.example("nginx.conf", **{"listen 443": f"listen {servers.HOST}:{site.port}"}))
    (site.folder / "nginx.conf").write_text(NGINX.format(folder=site.folder))
    return ["nginx", "-p", str(site.folder), "-c", str(site.folder / "nginx.conf")]


def caddy(site: Site) -> list[str]:
    found = site.example("Caddyfile", **{"host.example.org": f"https://{servers.HOST}:{site.port}", "# tls": "tls"})
    (site.folder / "Caddyfile").write_text(CADDY + found)
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(site.folder / "Caddyfile")]


@contextmanager
def proxy(argv: list[str], site: Site) -> Generator[None]:
    with (site.folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, env={"HOME": str(site.folder), "PATH": "/usr/sbin:/usr/bin:/bin"})
    try:
        servers.wait_until_listening(site.port, process, argv[0])
        yield
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(params=[nginx, caddy], ids=["nginx", "caddy"])
async def door(request: pytest.FixtureRequest, world: World, nats_url: str, tmp_path: Path) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the proxy, which trusts the authority of its certificate."""
    name = request.param.__name__
    if shutil.which(name) is None:
        pytest.skip(f"THE PROXY IS NOT TESTED: there is no {name} here; apt install {name}")
    authority = Authority.make(tmp_path / "authority")
    cert, key = authority.issue("proxy")
    async with gateway(world.bus, nats_url, trusted_proxies=("127.0.0.0/8",)) as address:
        site = Site(tmp_path, servers.free_port(), address.removeprefix("http://"), cert, key)
        trusted = ssl.create_default_context(cafile=str(authority.ca))
        with proxy(request.param(site), site):
            async with httpx.AsyncClient(base_url=f"https://{servers.HOST}:{site.port}/marlaas", verify=trusted, timeout=60) as found:
                yield found


async def test_addresses_have_the_prefix_and_events_come_as_they_happen(door: httpx.AsyncClient, world: World) -> None:
    made = await door.post("/v1/tasks", json=spec())
    assert made.status_code == 201
    assert made.headers["location"] == f"/marlaas/v1/tasks/{made.json()['task']}"
    await world.run("slow-1", until="accepted")
    async with door.stream("GET", "/v1/tasks/slow-1/events", headers=STREAM) as answer:
        assert answer.status_code == 200
        events = aiter(Stream(answer))
        async with asyncio.timeout(60):
            assert (await anext(events))["event"] == "accepted"
            await world.control("pause", "slow-1", until="paused")
            assert (await anext(events))["event"] == "paused"


async def test_errors_and_limits_are_the_gateways(door: httpx.AsyncClient) -> None:
    unknown = await door.get("/v1/tasks/nobody")
    assert (unknown.status_code, unknown.headers["content-type"]) == (404, "application/problem+json")
    most = GatewaySettings.model_fields["body_bytes"].default
    large = await door.post("/v1/tasks", content=b" " * (most + 1), headers={"content-type": "application/json"})
    assert (large.status_code, large.headers["content-type"]) == (413, "application/problem+json")
    assert large.headers["x-request-id"]
