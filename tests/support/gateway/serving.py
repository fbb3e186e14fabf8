"""A gateway in the test's process, with a real server on a free port, and clients of it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from common.bus import Bus
from common.runtime.health import Health
from common.runtime.service import Running
from gateway_svc.access import Access, OpenAccess
from gateway_svc.openai.sampling.choices import Sampler
from gateway_svc.service import serve_with
from gateway_svc.settings import GatewaySettings
from marlaas.stack import servers
from tests.support.waiting import eventually

PATIENT_S = {
    "common.client_api.training.jobs.REASONS_S": 60.0,
    "gateway_svc.http.routes.tasks.CONTROL_S": 60.0,
    "gateway_svc.limits.account.EXCHANGE_S": 60.0,
    "gateway_svc.limits.limiter.ANSWER_S": 60.0,
    "gateway_svc.serving.progress.SILENT_S": 60.0,
    "gateway_svc.serving.texts.WAIT_S": 15.0,
}
"""Waits after which a request is answered otherwise: a stopped process, or a busy machine, would reach the gateway's own, of 2 to 5 s."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the tests of a folder whose conftest imports it."""
    for name, seconds in PATIENT_S.items():
        monkeypatch.setattr(name, seconds)


@asynccontextmanager
async def gateway(
    bus: Bus,
    url: str,
    *,
    access: Access | None = None,
    sampler: Sampler | None = None,
    until_ready: bool = True,
    scheme: str = "http",
    **settings: Any,
) -> AsyncGenerator[str]:
    """Its address. It ends as on SIGTERM."""
    settings = {"port": servers.free_port(), "drain_s": 2.0, "submit_timeout_s": 60.0, "nats_url": url} | settings
    health = Health()
    running = Running(GatewaySettings(**settings), bus, health)
    runner = asyncio.create_task(serve_with(running, access or OpenAccess(bus, url), sampler))
    beating = asyncio.create_task(health.beat())
    address = f"{scheme}://127.0.0.1:{settings['port']}"
    try:
        await eventually(lambda: runner.done() or _answers(address, health if until_ready else None), 60)
        assert not runner.done(), runner
        yield address
    finally:
        for one in (runner, beating):
            one.cancel()
        await asyncio.gather(runner, beating, return_exceptions=True)


async def _answers(address: str, health: Health | None) -> bool:
    try:
        async with httpx.AsyncClient(verify=False) as client:
            await client.get(f"{address}/healthz")
    except httpx.HTTPError:
        return False
    return health is None or health.ready


def client(address: str, key: str = "") -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(base_url=address, headers=headers, timeout=60)
