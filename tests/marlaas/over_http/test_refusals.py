"""What is wrong with an address, a key, a certificate or a server is one clear line."""

import asyncio
import io
from pathlib import Path

import pytest

from common.bus import NO_FILES, Bus, TlsFiles
from common.client_api.asking import UnknownHere
from common.client_api.errors import NoAnswer, NotPermitted, TooManyJobs, WrongState
from marlaas.client import Client, ClientError
from marlaas.over_http.connection import Invalid, refusal
from marlaas.stack import servers
from tests.support.gateway.entering import entering
from tests.support.gateway.files import rows
from tests.support.gateway.serving import gateway
from tests.support.keyed import Keyed
from tests.support.marlaas.command import complaint, marlaas
from tests.support.scheduler.stages import World
from tests.support.tls import Authority


async def said(url: str, tls: TlsFiles = NO_FILES, timeout_s: float = 60.0) -> str:
    """What a client says that cannot connect. `timeout_s`: for what it would try again."""
    with pytest.raises(ClientError) as caught:
        async with Client.connect(url, tls=tls, timeout_s=timeout_s):
            pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://", "is no address of a gateway; one looks like https://host"),
        ("https://host:99999", "is no address of a gateway"),
        ("https://host?key=mk-1", "is no address of a gateway"),
        ("https://mk-secret@host", "a key is in no address; give it as MARLAAS_KEY"),
        ("ftp://host", "is no address of NATS; one looks like nats://host:4222"),
    ],
)
async def test_address_that_is_none_is_refused_before_anything_is_sent(url: str, expected: str) -> None:
    with pytest.raises(ClientError, match=expected) as caught:
        async with Client.connect(url):
            pass
    assert "secret" not in str(caught.value)


async def test_key_of_the_other_transport_is_refused() -> None:
    for url, given, expected in (
        ("https://host", {"creds": Path("x")}, "a file with a key is for NATS"),
        ("https://host", {"key": "SUABC"}, "this is no key of a gateway; one is mk-"),
        ("nats://host", {"key": "mk-1"}, "is for a gateway"),
        ("http://example.org", {"key": "mk-1"}, "would cross a network without TLS: use https://"),
    ):
        with pytest.raises(ClientError, match=expected):
            async with Client.connect(url, **given):  # type: ignore[arg-type]
                pass


async def test_server_that_is_away_or_another_is_named(bus: Bus, nats_url: str) -> None:
    away = f"http://127.0.0.1:{servers.free_port()}"
    assert f"no gateway answers at {away}" in await said(away, timeout_s=0.5)
    of_nats = nats_url.replace("nats://", "http://")
    assert of_nats in await said(of_nats, timeout_s=0.5)

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        writer.close()

    async with await asyncio.start_server(other, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert "does not answer as a gateway does" in await said(url)


async def test_wrong_scheme_and_wrong_certificate(bus: Bus, nats_url: str, tmp_path: Path) -> None:
    authority, other = Authority.make(tmp_path / "authority"), Authority.make(tmp_path / "other")
    named = authority.issue("server")
    async with (
        gateway(bus, nats_url, until_ready=False) as plain,
        gateway(bus, nats_url, until_ready=False, scheme="https", tls_cert=named[0], tls_key=named[1]) as secure,
    ):
        assert "its address is http://" in await said(plain.replace("http://", "https://"))
        assert "its address is https://" in await said(secure.replace("https://", "http://"), timeout_s=0.5)
        for tls in (NO_FILES, TlsFiles(ca=other.ca)):
            text = await said(secure, tls)
            assert "is refused" in text and "--ca FILE" in text
        refused = await asyncio.to_thread(marlaas, "ps", "--url", secure, cwd=tmp_path)
        assert complaint(refused) == f"marlaas: {await said(secure)}\n"
        async with Client.connect(secure, tls=TlsFiles(ca=authority.ca)) as client:
            assert client.tenant is None


async def test_keys_show_what_their_role_may(keyed: Keyed, keyed_world: World) -> None:
    async with entering(keyed) as entered, gateway(entered.bus, keyed.url, access=entered.access) as url:
        for given in (None, "mk-" + "0" * 64):
            with pytest.raises(
                NotPermitted, match="refuses this key; give a valid one" if given else "wants a key; give it as MARLAAS_KEY"
            ):
                async with Client.connect(url, key=given):
                    pass
        await entered.tenant("acme")
        key = await entered.key("acme", "ci", "reader")
        async with Client.connect(url, key=f"{key}\n") as client:
            assert (client.tenant, await client.tasks()) == ("acme", [])
            with pytest.raises(NotPermitted, match="this needs a key of the role"):
                await client.usage()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, '{"detail": "x", "code": "invalid", "errors": [{"field": "a.b", "reason": "is odd"}]}', Invalid),
        (402, '{"detail": "the budget is used up", "code": "budget"}', ClientError),
        (403, '{"detail": "no", "code": "forbidden"}', NotPermitted),
        (404, '{"detail": "no", "code": "not_found"}', UnknownHere),
        (404, "<html>", ClientError),
        (409, '{"detail": "no", "code": "wrong_state"}', WrongState),
        (429, '{"error": {"message": "slowly", "code": "rate_limit_exceeded"}}', TooManyJobs),
        (502, "<html>bad gateway</html>", NoAnswer),
        (503, '{"detail": "later", "code": "unavailable"}', NoAnswer),
        (301, "", ClientError),
    ],
)
def test_refusal_is_an_error_of_the_client(status: int, body: str, kind: type) -> None:
    found = refusal(status, body.encode(), "https://host", has_key=True, location="https://other/v1/tasks")
    assert type(found) is kind
    assert "<html>" not in str(found)
    assert "\n" not in str(found)


async def test_role_that_may_not_upload_is_told_so_and_a_member_needs_no_tenant(keyed: Keyed, keyed_world: World) -> None:
    """The gateway refuses a form before it has read it."""
    async with entering(keyed) as entered, gateway(entered.bus, keyed.url, access=entered.access) as address:
        await entered.tenant("acme")
        await keyed_world.run("a")
        reader, member = [await entered.key("acme", role, role) for role in ("reader", "member")]
        async with Client.connect(address, key=reader) as client:
            with pytest.raises(NotPermitted, match="forbids this: this needs a key of the role owner, member or admin"):
                await client.files.upload(io.BytesIO(rows(200_000)), "rows.jsonl")
            with pytest.raises(NotPermitted):
                await client.aliases.set("prod", "a", 1)
            with pytest.raises(NotPermitted):
                await client.webhooks.all()
        async with Client.connect(address, key=member) as client:
            file = await client.files.upload(io.BytesIO(rows(3)), "rows.jsonl")
            assert (file.tenant, file.rows) == ("acme", 3)
            assert (await client.aliases.set("prod", "a", 1)).tenant == "acme"
            assert await client.files.delete(file) == len(rows(3))
