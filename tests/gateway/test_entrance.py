"""What is refused before anything is asked of NATS, which is away here."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from common.bus import Bus
from common.client_api.asking import Door
from common.runtime.health import Health
from gateway_svc.access import Caller, Unauthorized
from gateway_svc.http import gateway as gateway_module
from gateway_svc.http.application import all_families, application
from gateway_svc.http.gateway import Gateway
from gateway_svc.settings import GatewaySettings
from tests.gateway.dashboard.site import csrf_of

JSON = {"content-type": "application/json"}
KEY = "mk-known"


class Access:
    """One key, of an admin; or none, which everybody has."""

    def __init__(self, key: str | None) -> None:
        self._key = key

    @asynccontextmanager
    async def entered(self, bearer: str | None) -> AsyncGenerator[Caller]:
        if self._key not in (None, bearer):
            raise Unauthorized("no valid key")
        yield Caller(Door(_absent(), "nats", patience_s=0), None, "admin", "")


def _absent() -> Bus:
    return cast(Bus, SimpleNamespace(is_connected=False, key=None))


def door(key: str | None, **settings: Any) -> httpx.AsyncClient:
    found = Gateway(GatewaySettings(**settings), _absent(), Access(key), Health(), cast(Any, None))
    app = application(found, all_families())
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://127.0.0.1")


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "PATIENCE_S", 0.0)


@pytest.fixture
def creds(tmp_path: Path) -> Path:
    (tmp_path / "gateway.creds").write_text("s" * 100)
    return tmp_path / "gateway.creds"


@pytest.mark.parametrize(
    "path",
    [
        "/ui/compare?task=..",
        "/ui/new?from=x%20y",
        "/ui/live?task=a%0d%0aPUB",
        "/ui/live?task=*",
        "/ui/tasks/x%20y/versions/1/adapter.tar",
        "/ui/tasks/a/versions/-1/adapter.tar",
        "/v1/fine_tuning/jobs?after=x%20y",
    ],
)
async def test_what_names_no_task_is_the_clients_error(path: str) -> None:
    async with door(None) as client:
        assert (await client.get(path)).status_code == 400


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/fine_tuning/jobs"])
async def test_no_body_is_parsed_of_senders_without_a_key(path: str) -> None:
    async with door(KEY) as client:
        assert (await client.post(path, content=b"{", headers=JSON)).status_code == 401
        assert (await client.post(path, content=b"{", headers=JSON | {"authorization": f"Bearer {KEY}"})).status_code == 400


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_pages_of_other_sites_change_nothing_on_a_server_without_keys(site: str) -> None:
    """Without a body, a browser sends such a request without asking first."""
    origin = "https://app.example.org"
    sent = {"sec-fetch-site": site, "origin": origin}
    async with door(None) as client, door(None, cors_origins=(origin,)) as named:
        for path in ("/v1/tasks/a/cancel", "/v1/fine_tuning/jobs/a/cancel"):
            assert (await client.post(path, headers=sent)).status_code == 403
            assert (await named.post(path, headers=sent)).status_code == 503
            assert (await client.post(path, headers={"sec-fetch-site": "same-origin"})).status_code == 503
        assert (await client.get("/v1/tasks/a", headers=sent)).status_code == 503


async def test_page_of_another_site_logs_nobody_in(creds: Path) -> None:
    """The token of the log-in page is everybody's: it would log its reader's victims in, to the reader's tenant."""
    async with door(KEY, nats_creds=creds) as client:
        form = {"csrf": csrf_of((await client.get("/ui/login")).text), "key": KEY}
        forged = await client.post("/ui/login", data=form, headers={"sec-fetch-site": "cross-site"})
        own = await client.post("/ui/login", data=form, headers={"sec-fetch-site": "same-origin"})

    assert (forged.status_code, own.status_code) == (403, 303)
    assert "set-cookie" not in forged.headers
