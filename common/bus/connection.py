"""A connection to NATS that survives the server's absence: it reconnects for ever, and logs each failure."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import APIError

from common.bus.address import nodes, objection_to_address, without_password
from common.bus.delivery import MAX_PAYLOAD_BYTES
from common.bus.timings import Timings
from common.errors import Fatal, Unavailable
from common.heartbeats import Heartbeats

T = TypeVar("T")

MIN_SERVER = (2, 10)
"""Minimum version: older servers ignore several consumer filters without an error."""
TOO_FEW_NODES = 10005
"""JetStream's error code for a declaration that needs nodes of the cluster that are not there yet."""

log = structlog.get_logger()


class Connection:
    def __init__(self, client: Client, beats: Heartbeats, timings: Timings) -> None:
        self.client = client
        self.beats = beats
        self.timings = timings
        self.js: JetStreamContext = client.jetstream(timeout=timings.answer_timeout_s)
        self.reconnected: Callable[[], None] = lambda: None
        """Called after each reconnection; the server has then forgotten pending pull requests."""
        self.violated: Callable[[str], bool] = lambda _: False
        """Called when the server refuses a subject; whether that is an error of one action only, and not of this process."""
        self._fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._attempt: int | None = None
        """Attempts to reconnect, the current one included: 0 while connected, None before the first connection."""
        self._last_error: Exception | None = None
        self._is_closing = False

    @classmethod
    async def open(cls, url: str, name: str, *, until_accepted: bool, timings: Timings) -> "Connection":
        """See `Bus.connect`."""
        if objection := objection_to_address(url):
            raise Fatal(f"{objection}; correct MARLAAS_NATS_URL")
        beats = Heartbeats(lambda: _heartbeat_client(url, name, timings))
        attempt = 0
        while True:
            connection = cls(Client(), beats, timings)
            try:
                await connection._connect(url, name)
                break
            except (TimeoutError, OSError, NatsError) as raised:
                attempt += 1
                error = connection._last_error or raised
                if "authorization" not in str(error).lower():
                    log.warning("nats_unreachable", url=without_password(url), attempt=attempt, error=str(error) or type(error).__name__)
                elif until_accepted:
                    log.error("nats_refuses_credentials", url=without_password(url), attempt=attempt, correct="MARLAAS_NATS_URL")
                else:
                    raise Fatal(f"NATS at {without_password(url)} refuses the credentials; correct MARLAAS_NATS_URL") from None
                await asyncio.sleep(timings.backoff.pause_s(attempt))
                await connection.client.close()
        version, max_payload = connection.client.connected_server_version, connection.client.max_payload
        if (version.major, version.minor) < MIN_SERVER:
            raise Fatal(f"NATS server {version} is too old: {MIN_SERVER[0]}.{MIN_SERVER[1]} or newer is needed")
        if max_payload < MAX_PAYLOAD_BYTES:
            raise Fatal(f"NATS server takes messages of {max_payload} bytes; set max_payload to {MAX_PAYLOAD_BYTES} or more")
        return connection

    async def _connect(self, url: str, name: str) -> None:
        await self.client.connect(
            **_options(url, name, self.timings),
            # `open` retries the first connection, to log the reason; the client retries later ones, for ever.
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
        """Never returns. Raises: Fatal when the server forbids something that this process needs, or closes the connection for good."""
        await asyncio.shield(self._fatal)

    async def retry_until_ready(self, action: Callable[[], Awaitable[T]]) -> T:
        """Retry `action` until JetStream answers: it may be starting, or overloaded.

        Raises: Fatal when a declaration is refused; Unavailable when this connection is closed.
        """
        attempt = 0
        while True:
            try:
                return await action()
            except (TimeoutError, NatsError, OSError, Unavailable) as error:
                attempt += 1
                if isinstance(error, APIError) and error.code == 400 and error.err_code != TOO_FEW_NODES and attempt >= 3:
                    raise Fatal(f"JetStream refuses the declaration: {error.description}") from None
                if self.client.is_closed:
                    raise Unavailable("the connection to NATS is closed") from None
                log.warning("jetstream_not_ready", attempt=attempt, error=str(error) or type(error).__name__)
                await asyncio.sleep(self.timings.backoff.pause_s(attempt))

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error  # reported by `open`, and by `wait_fatal` where it was the last
        if self._attempt is None:
            return
        if "permissions violation" in str(error).lower() and not self._fatal.done():
            if self.violated(str(error)):
                return
            self._fatal.set_exception(Fatal(f"NATS forbids this: {error}"))
        elif self._attempt:
            self.client.options["reconnect_time_wait"] = min(self.timings.backoff.pause_s(self._attempt), self.timings.max_reconnect_s)
            log.warning("nats_unreachable", attempt=self._attempt, error=str(error) or type(error).__name__)
            self._attempt += 1
        else:
            log.warning("nats_error", error=str(error) or type(error).__name__)

    async def _on_disconnected(self) -> None:
        if not self.client.is_closed:
            self._attempt = 1
            log.warning("nats_disconnected")

    async def _on_closed(self) -> None:
        """nats-py makes no other connection after some errors, as when the server was given other passwords."""
        if self._attempt is not None and not self._is_closing and not self._fatal.done():
            self._fatal.set_exception(Fatal(f"NATS has closed the connection: {self._last_error or 'it did not say why'}"))

    async def _on_reconnected(self) -> None:
        log.info("nats_reconnected")
        self._attempt = 0
        self.client.options["reconnect_time_wait"] = self.timings.reconnect_s
        self.reconnected()


@contextmanager
def unavailable_as(action: str) -> Generator[None]:
    """Raises: Unavailable ("could not <action>: …") when NATS does not answer inside the block."""
    try:
        yield
    except (TimeoutError, NatsError, OSError) as error:
        raise Unavailable(f"could not {action}: {error}") from None


def _options(url: str, name: str, timings: Timings) -> dict[str, Any]:
    """`Any`: nats-py's annotations want whole seconds, its code takes fractions."""
    return {
        "servers": nodes(url),
        "name": name,
        "connect_timeout": timings.connect_timeout_s,
        "reconnect_time_wait": timings.reconnect_s,
        "ping_interval": timings.ping_every_s,
        "max_outstanding_pings": timings.pings_unanswered,
    }


async def _heartbeat_client(url: str, name: str, timings: Timings) -> Client:
    """A second client for heartbeats. It meets the same errors as the first, which reports them."""

    async def reported_elsewhere(_: Exception) -> None:
        pass

    client = Client()
    await client.connect(**_options(url, f"{name}-heartbeats", timings), max_reconnect_attempts=-1, error_cb=reported_elsewhere)
    return client
