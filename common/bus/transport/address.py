"""Addresses of NATS servers: one, or those of a cluster's nodes separated by commas. TLS to them: certificate files, and a client that
never falls back to plain text if TLS was requested.
"""

import asyncio
import re
import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import ConnectionDrainingError
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError

from common.access.credentials import Credentials
from common.bus.transport.refusals import Refusals
from common.errors import Fatal
from common.resilience.event_loop import cancellation_kept

SCHEMES = ({"nats", "tls"}, {"ws", "wss"})
"""Schemes of an address; all nodes of a cluster use one of these sets."""


def objection_to_address(url: str) -> str | None:
    """Reason why `url` is not an address of NATS servers; None if it is. nats-py's own error would look like an unavailable server."""
    schemes = {_scheme(node) for node in nodes(url)}
    if schemes and any(schemes <= kind for kind in SCHEMES):
        return None
    return f"'{without_password(url)}' is no address of NATS; one looks like nats://host:4222"


def is_plain_beyond_loopback(url: str) -> bool:
    """Whether any node is on another machine and is reached without TLS."""
    return any(_scheme(node) not in ("tls", "wss") and not is_loopback(_parts(node).hostname or "") for node in nodes(url))


def is_beyond_loopback(url: str) -> bool:
    """Whether any node is on another machine."""
    return any(not is_loopback(_parts(node).hostname or "") for node in nodes(url))


def is_loopback(host: str) -> bool:
    """Whether a name or an IP address is loopback."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def nodes(url: str) -> list[str]:
    return [node.strip() for node in url.split(",") if node.strip()]


def without_password(url: str) -> str:
    return ",".join(re.sub(r"^(.*://)?.*@", r"\1", node) for node in nodes(url))


def _scheme(node: str) -> str | None:
    """Scheme of one server's address, `nats` by default; None if the address is invalid."""
    try:
        parts = _parts(node)
        return parts.scheme if parts.hostname and parts.port != 0 else None
    except ValueError:  # the port is not a number, or above 65535
        return None


def _parts(node: str) -> SplitResult:
    return urlsplit(node if "://" in node else f"nats://{node}")


@dataclass(frozen=True)
class TlsFiles:
    """PEM files. If any is set, the server must offer TLS even at a `nats://` address."""

    ca: Path | None = None
    """CA certificates against which the server's certificate is verified; None: the system's."""
    cert: Path | None = None
    """This process's certificate, for a server that requests one."""
    key: Path | None = None
    """The private key of `cert`."""

    @property
    def are_given(self) -> bool:
        return any((self.ca, self.cert, self.key))

    def context(self) -> ssl.SSLContext:
        """TLS context of the files. Raises: Fatal, naming the setting and its file."""
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
    """nats-py's client with five corrections, and quicker requests.

    Without them, the client accepts plain text for `tls://` if the server, or a man in the middle, offers no TLS. If the task that waits
    for the answer to a ping was cancelled or timed out, the answer ends the read loop, and with it the connection. A refused request waits
    until its timeout, and then looks as if NATS were unavailable. A ping overtakes data still to be written, so its answer does not prove
    that the server has processed a subscription. And any wait for the server may lose a cancellation (`common/resilience/event_loop.py`).
    """

    def __init__(self, key: Credentials | None, *, needs_tls: bool) -> None:
        super().__init__()
        self._needs_tls = needs_tls
        self.refusals = Refusals(key)
        self._tokens = count()

    async def connect(self, *args: Any, **options: Any) -> None:
        """`Any`: nats-py's own arguments, here and below."""
        with cancellation_kept():
            await super().connect(*args, **options)

    async def request(self, subject: str, *args: Any, **options: Any) -> Msg:
        """Send a request; a refused subject fails immediately. Raises: Refused; nats-py's own errors."""
        with self.refusals.awaited(subject):
            return await super().request(subject, *args, **options)

    async def _request_new_style(self, subject: str, payload: bytes, timeout: float = 1, headers: dict[str, Any] | None = None) -> Msg:
        """The answer to one request; replaces nats-py's method. Its random tokens need a system call each, though the inbox has a random
        name already, and it waits by `asyncio.wait_for`. Together these take as long as the rest of a publish."""
        if self.is_draining_pubs:
            raise ConnectionDrainingError
        if not self._resp_sub_prefix:
            await self._init_request_sub()
        assert self._resp_sub_prefix
        loop, token = asyncio.get_running_loop(), str(next(self._tokens))
        answer: asyncio.Future[Msg] = loop.create_future()
        self._resp_map[token] = answer
        expiry = loop.call_later(timeout, _expire, answer)
        try:
            await self.publish(subject, payload, reply=self._resp_sub_prefix.decode() + token, headers=headers)
            return await answer
        finally:
            expiry.cancel()
            self._resp_map.pop(token, None)

    async def flush(self, *args: Any, **options: Any) -> None:
        with cancellation_kept():
            await super().flush(*args, **options)

    async def _flush_pending(self, *args: Any, **options: Any) -> None:
        """Every publish, subscribe and unsubscribe ends with this call, so a lost cancellation is restored here."""
        with cancellation_kept():
            await super()._flush_pending(*args, **options)

    def _connect_command(self) -> bytes:
        """The client's first message, with the credentials; sent after the TLS handshake, on every connection."""
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
            self._pongs[0] = asyncio.get_running_loop().create_future()  # replaces a future whose waiter has gone
        await super()._process_pong()


def _expire(answer: "asyncio.Future[Msg]") -> None:
    if not answer.done():
        answer.set_exception(NatsTimeoutError())


def tls_failure(error: Exception) -> str | None:
    """The problem with a server's certificate, or its lack of TLS; None for errors of another kind."""
    if isinstance(error, PlainServer):
        return "it offers no TLS: correct the server, or use nats:// where the network is trusted"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message.rstrip('.')}; name its authority's with MARLAAS_NATS_CA"
    if isinstance(error, ssl.SSLError):
        return f"TLS fails: {_reason(error)}; where it asks for a certificate, name yours with MARLAAS_NATS_CERT and MARLAAS_NATS_KEY"
    return None


def _reason(error: OSError) -> str:
    return (getattr(error, "reason", None) or error.strerror or str(error)).lower().replace("_", " ")
