"""uvicorn in the service's event loop. The process keeps its own signal handlers."""

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress

import h11
from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from common.errors import Fatal
from gateway_svc.settings import GatewaySettings

BACKLOG = 2048
"""Maximum connections waiting in the kernel to be accepted."""
ACCEPTED_PER_TURN = 4
"""Connections accepted per turn of the event loop. asyncio would accept up to BACKLOG, which takes about 300 ms; uvloop accepts one."""
VANISHED_MS = 30_000
"""Milliseconds without an acknowledgement after which the kernel closes a connection, so that streams to vanished clients end."""
ENDING_S = 2
"""Seconds for connections to close after their answers are complete."""


class GatewayServer(Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, but limit a TLS handshake to the time of an idle connection instead of asyncio's 60 s."""
        assert sockets is not None
        await self.lifespan.startup()
        config, limit_s = self.config, None if self.config.ssl is None else float(self.config.timeout_keep_alive)

        def protocol() -> asyncio.Protocol:
            return TimelyProtocol(config=config, server_state=self.server_state, app_state=self.lifespan.state)

        self.servers = [
            await asyncio.get_running_loop().create_server(
                protocol,
                sock=each.dup(),
                ssl=config.ssl,
                backlog=1,  # asyncio accepts this many in a turn, uvloop one
                ssl_handshake_timeout=limit_s,
                ssl_shutdown_timeout=limit_s,
            )
            for each in sockets
            for _ in range(ACCEPTED_PER_TURN)
        ]
        for each in sockets:
            each.listen(config.backlog)  # creating the servers set the kernel's backlog to the same value
        self.started = True

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to `run_service`."""
        yield


class TimelyProtocol(H11Protocol):
    """HTTP/1.1 protocol whose request header must be complete within the time of an idle connection."""

    _overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None:
            with suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_MS)
                # asyncio sets it only where the listening socket names its protocol, and a header and its body are two writes: the second
                # would wait 40 ms for the client to acknowledge the first.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._expect_header()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._time()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._time()

    def _time(self) -> None:
        """Limit the time for a header, and for the rest of an unread body; the application limits other bodies."""
        is_unread = self.conn.their_state is h11.SEND_BODY and self.conn.our_state in (h11.DONE, h11.MUST_CLOSE)
        if self.conn.their_state is h11.IDLE or is_unread:
            self._expect_header()
        else:
            self._forget()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _expect_header(self) -> None:
        if self._overdue is None:
            self._overdue = self.loop.call_later(self.config.timeout_keep_alive, self.transport.close)

    def _forget(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None


def listener(settings: GatewaySettings) -> socket.socket:
    """Create a bound socket. Raises: Fatal if the address is in use."""
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        return socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise Fatal(
            f"cannot listen on {settings.host}:{settings.port} ({error.strerror}); set MARLAAS_GATEWAY_PORT to a free port"
        ) from None


def server(app: ASGIApp, settings: GatewaySettings) -> GatewayServer:
    """Configure uvicorn. Raises: Fatal if the certificate cannot be read."""
    config = Config(
        app,
        loop="asyncio",
        http=TimelyProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        root_path=settings.root_path,
        backlog=BACKLOG,
        timeout_keep_alive=int(settings.timeout_s) or 1,
        timeout_graceful_shutdown=ENDING_S,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    try:
        config.load()
    except OSError as error:
        raise Fatal(f"MARLAAS_GATEWAY_TLS_CERT and _TLS_KEY: {error}") from None
    return GatewayServer(config)
