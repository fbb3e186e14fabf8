"""TLS to a real NATS server: whose certificate is accepted, and that nothing goes on without TLS where it was asked for."""

import asyncio
import datetime
import ipaddress
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from common.bus import Bus, TlsFiles
from common.errors import Fatal
from marlaas.stack import servers
from tests.conftest import HASTY, running


@dataclass(frozen=True)
class Authority:
    """Signs certificates, and writes them to a folder."""

    folder: Path
    name: x509.Name
    key: ec.EllipticCurvePrivateKey
    ca: Path

    @classmethod
    def make(cls, folder: Path) -> "Authority":
        folder.mkdir()
        key, name = ec.generate_private_key(ec.SECP256R1()), _name("authority")
        certificate = _builder(name, name, key).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        ca = folder / "ca.pem"
        ca.write_bytes(certificate.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return cls(folder, name, key, ca)

    def issue(self, subject: str, *, address: str = servers.HOST) -> tuple[Path, Path]:
        """Files with a certificate for `address` and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        made = _builder(_name(subject), self.name, key).add_extension(names, critical=False).sign(self.key, hashes.SHA256())
        cert, key_file = self.folder / f"{subject}.pem", self.folder / f"{subject}.key"
        cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        plain = serialization.NoEncryption()
        key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
        return cert, key_file


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    return builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + datetime.timedelta(hours=1))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path / "authority")


@contextmanager
def serving(folder: Path, tls: str = "") -> Generator[str]:
    """A NATS server's host and port."""
    port = servers.free_port()
    with running(servers.nats_command(folder, port, accounts=tls), port, folder / "nats.log"):
        yield f"{servers.HOST}:{port}"


def offered(files: tuple[Path, Path], *, clients_of: Path | None = None) -> str:
    """The server's configuration; `clients_of`: it wants certificates of this authority."""
    asks = f', ca_file: "{clients_of}", verify: true' if clients_of else ""
    return f'tls {{ cert_file: "{files[0]}", key_file: "{files[1]}"{asks} }}\n'


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
            async with asyncio.timeout(30):
                while not bus.is_connected:
                    await asyncio.sleep(0.05)
            assert bus.is_connected


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
