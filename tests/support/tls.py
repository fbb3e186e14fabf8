"""A certificate authority, and NATS servers with TLS."""

import datetime
import ipaddress
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from marlaas.stack import servers
from tests.support.servers import running


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
