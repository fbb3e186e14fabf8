"""TLS to a real NATS server: whose certificate is accepted, and that nothing goes on without TLS where it was asked for."""

import asyncio
from pathlib import Path

import pytest

from common.bus import Bus, TlsFiles
from common.errors import Fatal
from marlaas.stack import servers
from tests.support.buses import HASTY
from tests.support.servers import running
from tests.support.tls import Authority, offered, serving
from tests.support.waiting import eventually


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path / "authority")


@pytest.mark.parametrize("scheme", ["tls", "nats"])
async def test_certificate_of_the_named_authority_is_accepted(tmp_path: Path, authority: Authority, scheme: str) -> None:
    with serving(tmp_path / "nats", offered(authority.issue("server"))) as server:
        async with await Bus.connect(f"{scheme}://{server}", "client", tls=TlsFiles(ca=authority.ca), timings=HASTY) as bus:
            assert bus.is_connected


async def test_other_certificates_are_refused_in_one_sentence(tmp_path: Path, authority: Authority) -> None:
    other = Authority.make(tmp_path / "other")
    for files in (other.issue("server"), authority.issue("server", address="192.0.2.1")):
        refused = r"^NATS at .*its certificate is refused: .*; name its authority's with MARLAAS_NATS_CA$"
        with serving(tmp_path / f"{files[0].parent.name}-nats", offered(files)) as server, pytest.raises(Fatal, match=refused):
            await Bus.connect(f"tls://{server}", "client", tls=TlsFiles(ca=authority.ca), timings=HASTY)


@pytest.mark.parametrize("scheme", ["tls", "nats"])
async def test_server_without_tls_gets_no_credentials_where_tls_is_asked_for(tmp_path: Path, authority: Authority, scheme: str) -> None:
    """nats-py alone would send them: who sits between client and server only has to say that there is no TLS."""
    files = TlsFiles(ca=authority.ca if scheme == "nats" else None)
    received = bytearray()

    async def spy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.12.0","max_payload":8388608,"headers":true,"auth_required":true}\r\n')
        await writer.drain()
        received.extend(await asyncio.wait_for(reader.read(), 2))
        writer.close()

    async with await asyncio.start_server(spy, servers.HOST, 0) as server:
        address = f"{scheme}://marlaas:secret@{servers.HOST}:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(Fatal, match="it offers no TLS: correct the server, or use nats://"):
            await asyncio.wait_for(Bus.connect(address, "client", tls=files, timings=HASTY), 20)
    assert b"secret" not in received


async def test_server_that_wants_a_certificate_gets_one(tmp_path: Path, authority: Authority) -> None:
    with serving(tmp_path / "nats", offered(authority.issue("server"), clients_of=authority.ca)) as server:
        cert, key = authority.issue("client")
        async with await Bus.connect(f"tls://{server}", "client", tls=TlsFiles(authority.ca, cert, key), timings=HASTY) as bus:
            assert bus.is_connected
        with pytest.raises(Fatal, match=r"TLS fails: .*certificate required; .*name yours with MARLAAS_NATS_CERT and MARLAAS_NATS_KEY$"):
            await Bus.connect(f"tls://{server}", "client", tls=TlsFiles(ca=authority.ca), timings=HASTY)


async def test_connection_comes_back_by_tls_after_the_server_was_away(tmp_path: Path, authority: Authority) -> None:
    port, tls = servers.free_port(), offered(authority.issue("server"))
    command = servers.nats_command(tmp_path / "nats", port, accounts=tls)
    with running(command, port, tmp_path / "nats.log"):
        bus = await Bus.connect(f"tls://{servers.HOST}:{port}", "client", tls=TlsFiles(ca=authority.ca), timings=HASTY)
    async with bus:
        with running(command, port, tmp_path / "nats.log"):
            await eventually(lambda: bus.is_connected)


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"ca": "none.pem"}, r"MARLAAS_NATS_CA: .*none\.pem holds no certificate that can be read: no such file"),
        ({"ca": "text"}, r"MARLAAS_NATS_CA: .*text holds no certificate"),
        ({"cert": "client.pem"}, "MARLAAS_NATS_CERT and MARLAAS_NATS_KEY belong together"),
        ({"cert": "client.pem", "key": "server.key"}, r"client\.pem and .*server\.key are no certificate and its key: key values mismatch"),
    ],
)
async def test_wrong_file_is_named(authority: Authority, files: dict[str, str], complaint: str) -> None:
    for subject in ("client", "server"):
        authority.issue(subject)
    (authority.folder / "text").write_text("no certificate")
    with pytest.raises(Fatal, match=complaint):
        await Bus.connect("tls://127.0.0.1:1", "client", tls=TlsFiles(**{name: authority.folder / file for name, file in files.items()}))
