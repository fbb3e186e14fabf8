"""A connection to NATS that survives outages of the server: it reconnects forever, and logs each failure."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import structlog
from nats.aio.client import RawCredentials
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import APIError

from common.access.credentials import Credentials, read_credentials
from common.bus import metrics
from common.bus.delivery import MAX_PAYLOAD_BYTES
from common.bus.transport.address import (
    NO_FILES,
    NatsClient,
    TlsFiles,
    is_plain_beyond_loopback,
    nodes,
    objection_to_address,
    tls_failure,
    without_password,
)
from common.bus.transport.refusals import Refused, refused_key, refused_subject, violated
from common.bus.transport.timings import Timings
from common.errors import Fatal, Forbidden, KeyRefused, Unavailable, Undeclared
from common.heartbeats import Heartbeats

T = TypeVar("T")

MIN_SERVER = (2, 10)
"""Minimum server version: older servers silently ignore multiple consumer filters."""
DISCARD_S = 1.0
TOO_FEW_NODES = 10005
"""JetStream's error code for a declaration that needs cluster nodes that have not joined yet."""

log = structlog.get_logger()


@dataclass(frozen=True)
class Server:
    """Address and credentials of a server."""

    url: str
    """One address, or comma-separated addresses of a cluster's nodes."""
    name: str
    """Name of the connection in NATS's own lists."""
    creds: Path | Credentials | None = None
    """A key, or its file; None if the server requires none."""
    insecure: bool = False
    """Whether a key may be used without TLS beyond loopback."""
    tls: TlsFiles = NO_FILES

    @property
    def shown(self) -> str:
        return without_password(self.url)


class Connection:
    def __init__(self, client: NatsClient, beats: Heartbeats, timings: Timings, server: Server, key: Credentials | None) -> None:
        self.client = client
        self.key = key
        self._server = server
        self.beats = beats
        self.timings = timings
        self.js: JetStreamContext = client.jetstream(timeout=timings.answer_timeout_s)
        self.reconnected: Callable[[], None] = lambda: None
        """Callback after each reconnection; the server has then forgotten pending pull requests."""
        self.forbidden = 0
        """Number of messages and subscriptions that NATS did not permit this connection's key."""
        self.closed: set[Callable[[], None]] = set()
        """Callbacks for when the connection is closed permanently."""
        self._fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._attempt: int | None = None
        """Number of the current attempt to reconnect; 0 while connected, None before the first connection."""
        self._last_error: Exception | None = None
        self._is_closing = False

    @classmethod
    async def open(cls, server: Server, *, until_accepted: bool, timings: Timings) -> "Connection":
        """See `Bus.connect`."""
        if objection := objection_to_address(server.url):
            raise Fatal(f"{objection}; correct MARLAAS_NATS_URL")
        key = read_credentials(server.creds) if isinstance(server.creds, Path) else server.creds
        if key is not None and not server.insecure and not server.tls.are_given and is_plain_beyond_loopback(server.url):
            raise Fatal(
                f"{server.shown} is reached without TLS, where others may read and change messages: use tls://, or say that the network"
                " is trusted with --insecure, or MARLAAS_NATS_INSECURE=1"
            )
        beats = Heartbeats(lambda: _heartbeat_client(server, key, timings))
        attempt = 0
        while True:
            connection = cls(_client(server, key), beats, timings, server, key)
            try:
                await connection._connect()
                break
            except asyncio.CancelledError:
                await _discard(connection.client)
                raise
            except (TimeoutError, OSError, NatsError) as raised:
                attempt += 1
                error = connection._last_error or raised
                reason = connection._why_refused(error)
                if reason is None:
                    log.warning("nats_unreachable", url=server.shown, attempt=attempt, error=str(error) or type(error).__name__)
                elif until_accepted:
                    event = "nats_tls_fails" if tls_failure(error) else "nats_refuses_credentials"
                    log.error(event, url=server.shown, attempt=attempt, reason=reason)
                else:
                    await _discard(connection.client)
                    raise (Fatal if tls_failure(error) else KeyRefused)(reason) from None
                await asyncio.sleep(timings.backoff.pause_s(attempt))
                await connection.client.close()
        version, max_payload = connection.client.connected_server_version, connection.client.max_payload
        if (version.major, version.minor) < MIN_SERVER:
            raise Fatal(f"NATS server {version} is too old: {MIN_SERVER[0]}.{MIN_SERVER[1]} or newer is needed")
        if max_payload < MAX_PAYLOAD_BYTES:
            raise Fatal(f"NATS server takes messages of {max_payload} bytes; set max_payload to {MAX_PAYLOAD_BYTES} or more")
        return connection

    def _why_refused(self, error: Exception) -> str | None:
        """Reason why no retry can succeed before the configuration is corrected, here or at the server; None if a retry may succeed."""
        if failure := tls_failure(error):
            return f"NATS at {self._server.shown}: {failure}"
        if not _is_about_credentials(error):
            return None
        # A server that accepts keys sends a nonce to be signed.
        return refused_key(self._server.shown, self.key, wants_key="nonce" in self.client._server_info)

    async def _connect(self) -> None:
        await self.client.connect(
            **_options(self._server, self.key, self.timings),
            # `open` retries the first connection, to log the reason; the client retries later ones, forever.
            max_reconnect_attempts=1,
            allow_reconnect=False,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            closed_cb=self._on_closed,
        )
        self.client.options |= {"max_reconnect_attempts": -1, "allow_reconnect": True}
        self._attempt = 0

    async def close(self) -> None:
        self._is_closing = True
        await self.beats.stop()
        with suppress(NatsError, asyncio.TimeoutError):
            await self.client.flush(timeout=2)
        with suppress(OSError):  # the connection is lost already
            await self.client.close()

    async def wait_fatal(self) -> None:
        """Wait until the server closes the connection permanently; never returns. A refused subject does not end the wait: only the call
        that uses the subject fails. Raises: Fatal."""
        await asyncio.shield(self._fatal)

    def raise_if_refused(self) -> None:
        """Raises: Fatal if NATS has closed the connection permanently: no retry would succeed."""
        if self.client.is_closed and self._fatal.done() and not self._is_closing:
            self._fatal.result()

    async def unless_refused(self, subject: str, action: Awaitable[T]) -> T:
        """Await `action`, which publishes or subscribes to `subject`; returns its result.

        Raises: Forbidden as soon as NATS refuses the subject, by an error without reference to a message; exceptions of `action`.
        """
        try:
            with self.client.refusals.awaited(subject):
                return await action
        except Refused as error:
            raise Forbidden(str(error)) from None

    async def retry_until_ready(self, action: Callable[[], Awaitable[T]]) -> T:
        """Retry `action` until JetStream answers: it may be starting, or overloaded.

        Raises: Undeclared if a declaration is refused, or the key does not permit it; Unavailable if this connection is closed.
        """
        attempt = 0
        while True:
            try:
                return await action()
            except Refused as error:
                raise Undeclared(f"NATS forbids this: {error}") from None
            except (TimeoutError, NatsError, OSError, Unavailable) as error:
                attempt += 1
                if isinstance(error, APIError) and error.code == 400 and error.err_code != TOO_FEW_NODES and attempt >= 3:
                    raise Undeclared(f"JetStream refuses the declaration: {error.description}") from None
                self.raise_if_refused()
                if self.client.is_closed:
                    raise Unavailable("the connection to NATS is closed") from None
                log.warning("jetstream_not_ready", attempt=attempt, error=str(error) or type(error).__name__)
                await asyncio.sleep(self.timings.backoff.pause_s(attempt))

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error  # reported by `open`, and by `wait_fatal` if it was the last
        if self._attempt is None:
            return
        if (found := violated(str(error))) is not None:
            self._on_refusal(*found)
        elif self._attempt:
            self.client.options["reconnect_time_wait"] = min(self.timings.backoff.pause_s(self._attempt), self.timings.max_reconnect_s)
            log.warning("nats_unreachable", attempt=self._attempt, error=str(error) or type(error).__name__)
            self._attempt += 1
        else:
            log.warning("nats_error", error=str(error) or type(error).__name__)

    def _on_refusal(self, subject: str, published: bool) -> None:
        self.forbidden += 1
        metrics.FORBIDDEN.inc()
        if not self.client.refusals.refuse(subject, published=published):
            log.error("nats_forbids", reason=refused_subject(subject, self.key, published=published))

    async def _on_disconnected(self) -> None:
        if not self.client.is_closed:
            self._attempt = 1
            log.warning("nats_disconnected")

    async def _on_closed(self) -> None:
        """End everything that uses the connection: nats-py has stopped reconnecting, for example because the server's passwords were
        changed."""
        for end in list(self.closed):
            end()
        if self._attempt is None or self._is_closing:
            return
        error = self.client.last_error or self._last_error
        reason = self._why_refused(error) if error is not None else None
        self._end(f"NATS has closed the connection: {reason or error or 'it did not say why'}")

    def _end(self, reason: str) -> None:
        if not self._fatal.done():
            self._fatal.set_exception(Fatal(reason))
            self._fatal.exception()  # clients do not await it, and asyncio would warn about an unretrieved exception

    async def _on_reconnected(self) -> None:
        log.info("nats_reconnected")
        self._attempt = 0
        self.client.options["reconnect_time_wait"] = self.timings.reconnect_s
        self.reconnected()


@contextmanager
def unavailable_as(action: str) -> Generator[None]:
    """Raises: Unavailable ("could not <action>: …") if NATS does not answer inside the block."""
    try:
        yield
    except (TimeoutError, NatsError, OSError) as error:
        raise Unavailable(f"could not {action}: {error}") from None


def _is_about_credentials(error: Exception) -> bool:
    """Whether the server refuses these credentials; its error contains "authorization", or "authentication" for tokens."""
    return any(word in str(error).lower() for word in ("authorization", "authentication"))


def _options(server: Server, key: Credentials | None, timings: Timings) -> dict[str, Any]:
    """Options for nats-py. `Any`: its annotations require whole seconds, its code accepts fractions."""
    options: dict[str, Any] = {
        "servers": nodes(server.url),
        "name": server.name,
        "connect_timeout": timings.connect_timeout_s,
        "reconnect_time_wait": timings.reconnect_s,
        "ping_interval": timings.ping_every_s,
        "max_outstanding_pings": timings.pings_unanswered,
    }
    if server.tls.are_given:
        options["tls"] = server.tls.context()
    return options | (_signing(key) | {"inbox_prefix": key.inbox} if key else {})


async def _discard(client: NatsClient) -> None:
    """Close the connection of a failed attempt: the server may have accepted it. At most DISCARD_S, because nats-py never learns that a
    failed TLS handshake has ended."""
    with suppress(TimeoutError, OSError, NatsError):
        async with asyncio.timeout(DISCARD_S):
            await client.close()


def _signing(key: Credentials) -> dict[str, Any]:
    """nats-py's option for credentials; nats-py rereads a file at each connection."""
    return {"user_credentials": str(key.source) if isinstance(key.source, Path) else RawCredentials(key.source.text())}


def _client(server: Server, key: Credentials | None) -> NatsClient:
    return NatsClient(key, needs_tls=server.tls.are_given)


async def _heartbeat_client(server: Server, key: Credentials | None, timings: Timings) -> NatsClient:
    """A second client, for heartbeats. Its errors are not reported: the first client meets the same ones, and reports them."""

    async def reported_elsewhere(_: Exception) -> None:
        pass

    client = _client(server, key)
    options = _options(replace(server, name=f"{server.name}-heartbeats"), key, timings)
    await client.connect(**options, max_reconnect_attempts=-1, error_cb=reported_elsewhere)
    return client
