"""Addresses of NATS servers: one, or those of a cluster's nodes separated by commas. TLS of a connection to them: files with certificates,
and a client that never goes on without TLS where it was asked for.
"""

import asyncio
import re
import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from common.access.credentials import Credentials
from common.bus.transport.refusals import Refusals
from common.errors import Fatal
from common.resilience.event_loop import cancellation_kept

SCHEMES = ({"nats", "tls"}, {"ws", "wss"})
"""Schemes of an address; all nodes of a cluster use one set."""


def objection_to_address(url: str) -> str | None:
    """Why `url` names no NATS servers; None when it does. nats-py's own error would look like an unavailable server."""
    schemes = {_scheme(node) for node in nodes(url)}
    if schemes and any(schemes <= kind for kind in SCHEMES):
        return None
    return f"'{without_password(url)}' is no address of NATS; one looks like nats://host:4222"


def is_plain_beyond_loopback(url: str) -> bool:
    """Whether some node is on another machine and is reached without TLS."""
    return any(_scheme(node) not in ("tls", "wss") and not is_loopback(_parts(node).hostname or "") for node in nodes(url))


def is_beyond_loopback(url: str) -> bool:
    """Whether some node is on another machine."""
    return any(not is_loopback(_parts(node).hostname or "") for node in nodes(url))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a name or an IP address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def nodes(url: str) -> list[str]:
    return [node.strip() for node in url.split(",") if node.strip()]


def without_password(url: str) -> str:
    return ",".join(re.sub(r"^(.*://)?.*@", r"\1", node) for node in nodes(url))


def _scheme(node: str) -> str | None:
    """Scheme of one server's address, `nats` by default; None when it is no address."""
    try:
        parts = _parts(node)
        return parts.scheme if parts.hostname and parts.port != 0 else None
    except ValueError:  # a port that is no number, or above 65535
        return None


def _parts(node: str) -> SplitResult:
    return urlsplit(node if "://" in node else f"nats://{node}")


@dataclass(frozen=True)
class TlsFiles:
    """Files in PEM. With any of them, the server must offer TLS also at a `nats://` address."""

    ca: Path | None = None
    """Certificates of the authorities that the server's certificate is checked against; None: those of this system."""
    cert: Path | None = None
    """This process's certificate, for a server that asks for one."""
    key: Path | None = None
    """The private key of `cert`."""

    @property
    def are_given(self) -> bool:
        return any((self.ca, self.cert, self.key))

    def context(self) -> ssl.SSLContext:
        """Raises: Fatal, naming the setting and its file."""
        if (self.cert is None) != (self.key is None):
            raise Fatal("MARLAAS_NATS_CERT and MARLAAS_NATS_KEY belong together: set both, or neither")
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise Fatal(f"MARLAAS_NATS_CA: {self.ca} holds no certificate that can be read: {_reason(error)}") from None
        if self.cert and self.key:
            try:
                context.load_cert_chain(self.cert, self.key)
            except (OSError, ssl.SSLError) as error:
                found = f"{self.cert} and {self.key}"
                raise Fatal(f"MARLAAS_NATS_CERT, MARLAAS_NATS_KEY: {found} are no certificate and its key: {_reason(error)}") from None
        return context


NO_FILES = TlsFiles()


class PlainServer(NatsError):
    """The server offers no TLS."""


class NatsClient(Client):
    """nats-py's client, which needs five things more.

    It alone would take `tls://` for `nats://` where the server, or who sits in between, offers no TLS. And where who waits for the answer
    to a ping has gone, cancelled or out of patience, the answer would end its loop that reads, and with it the connection. And a request
    that the server refuses would wait for an answer until its time is over, and then look as if NATS were unavailable. And its ping
    overtakes what is still to be written, so that the answer to it would not say that the server has a subscription, or has ended one.
    And wherever it waits for the server it may lose a cancellation (`common/resilience/event_loop.py`).
    """

    def __init__(self, key: Credentials | None, *, needs_tls: bool) -> None:
        super().__init__()
        self._needs_tls = needs_tls
        self.refusals = Refusals(key)

    async def connect(self, *args: Any, **options: Any) -> None:
        """`Any`: as nats-py takes them, here and below."""
        with cancellation_kept():
            await super().connect(*args, **options)

    async def request(self, subject: str, *args: Any, **options: Any) -> Msg:
        """Raises: Refused; as nats-py's."""
        with self.refusals.awaited(subject), cancellation_kept():
            return await super().request(subject, *args, **options)

    async def flush(self, *args: Any, **options: Any) -> None:
        with cancellation_kept():
            await super().flush(*args, **options)

    async def _flush_pending(self, *args: Any, **options: Any) -> None:
        """All that publishes, subscribes or unsubscribes ends here."""
        with cancellation_kept():
            await super()._flush_pending(*args, **options)

    def _connect_command(self) -> bytes:
        """The first message of ours, with the credentials; sent after TLS has been agreed on, at every connection."""
        assert self._current_server is not None
        if (self._needs_tls or self._current_server.uri.scheme == "tls") and not self._server_info.get("tls_required"):
            raise PlainServer("the server offers no TLS")
        return super()._connect_command()

    async def _send_ping(self, future: "asyncio.Future[bool] | None" = None) -> None:
        if self._pending and self._transport is not None and self.is_connected:
            self._transport.writelines(self._pending)
            self._pending, self._pending_data_size = [], 0
        await super()._send_ping(future)

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()  # in place of one that nobody waits for
        await super()._process_pong()


def tls_failure(error: Exception) -> str | None:
    """What is wrong with a server's certificate, or with its lack of TLS; None for an error of another kind."""
    if isinstance(error, PlainServer):
        return "it offers no TLS: correct the server, or use nats:// where the network is trusted"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message.rstrip('.')}; name its authority's with MARLAAS_NATS_CA"
    if isinstance(error, ssl.SSLError):
        return f"TLS fails: {_reason(error)}; where it asks for a certificate, name yours with MARLAAS_NATS_CERT and MARLAAS_NATS_KEY"
    return None


def _reason(error: OSError) -> str:
    return (getattr(error, "reason", None) or error.strerror or str(error)).lower().replace("_", " ")
