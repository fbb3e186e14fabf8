"""How every service runs: settings, logs, health, the bus, its runners, and a clean end.

A service is a function from a `Running` (what it was given) to a coroutine that runs until cancelled. `run_service`
starts it and stops it: SIGTERM or SIGINT cancels it, unfinished messages go back to the queue, exit status 0. `Fatal`
ends it with one log line and exit status 1.
"""

import asyncio
import gc
import json
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Generic, TypeVar

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from common import crashpoints
from common.bus import Bus
from common.errors import Fatal
from common.heartbeats import STALLED_S
from common.messages import ReplicaReport
from common.periodic import run_periodically
from common.runtime.logs import configure_logs
from common.runtime.settings import Settings, describe, read_or_exit
from common.streams import REPLICA_TTL_S, REPLICAS_BUCKET

S = TypeVar("S", bound=Settings)
log = structlog.get_logger()

YOUNG_OBJECTS = 10_000
"""New containers between two looks for garbage among them; Python's own 700 come together with every few messages."""


def collect_rarely() -> None:
    """Look for garbage in cycles less often, and never again among what is there now: all that was imported and built at the
    start, which a full collection would walk through, while the event loop stands, for up to half a second."""
    gc.set_threshold(YOUNG_OBJECTS)
    gc.collect()
    gc.freeze()


class Health:
    """What /healthz and /readyz answer: alive while the event loop turns, ready once the service says so."""

    def __init__(self) -> None:
        self.ready = False
        self.detail = "starting"
        self._beat = time.monotonic()

    def set_ready(self, detail: str = "ready") -> None:
        if not self.ready:
            collect_rarely()
        self.ready, self.detail = True, detail
        log.info("ready", detail=detail)

    async def beat(self) -> None:
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(1)

    def alive(self) -> bool:
        return time.monotonic() - self._beat < STALLED_S


@dataclass(frozen=True)
class Running(Generic[S]):
    """What a service is given: its settings, a connected bus with everything declared, and its health."""

    settings: S
    bus: Bus
    health: Health


def run_service(settings_type: type[S], main: Callable[[Running[S]], Awaitable[None]]) -> None:
    """Run `main` until a signal or `Fatal`. Never returns; the exit status is 0 or 1 (2 for bad settings)."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.stdout.write(
            f"python -m {settings_type.service.lower()}_svc: its settings are environment variables.\n\n{describe(settings_type)}\n"
        )
        sys.exit(0)
    settings = read_or_exit(settings_type)
    assert isinstance(settings, settings_type)
    configure_logs(settings.service.lower(), settings.replica, settings.log_level)
    crashpoints.arm(settings.crash_point)
    collect_rarely()
    sys.exit(asyncio.run(_run(settings, main)))


async def _run(settings: S, main: Callable[[Running[S]], Awaitable[None]]) -> int:
    health = Health()
    server = _serve_http(settings.http_host, settings.http_port, health)
    log.info("starting", http_port=server.server_address[1])
    runner = asyncio.ensure_future(_connected(settings, health, main))
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, runner.cancel)
    try:
        await runner
        return 0
    except asyncio.CancelledError:
        log.info("stopped")
        return 0
    except Exception as error:
        return _report(error)
    finally:
        server.shutdown()


async def _connected(settings: S, health: Health, main: Callable[[Running[S]], Awaitable[None]]) -> None:
    async with asyncio.TaskGroup() as runners:
        beating = runners.create_task(health.beat())
        bus = await Bus.connect(settings.nats_url, f"{settings.service.lower()}-{settings.replica}", until_accepted=True)
        try:
            await bus.declare(replicas=settings.nats_replicas, blobs_bytes=settings.nats_blobs_bytes)
            others = [beating, runners.create_task(bus.wait_fatal()), runners.create_task(bus.clock.sync())]
            await main(Running(settings, bus, health))
            for other in others:
                other.cancel()
        finally:
            await asyncio.shield(bus.close())


def _report(error: BaseException) -> int:
    """Log why the process ends: one line for Fatal, a traceback for a bug."""
    causes = list(_leaves(error))
    fatal = next((cause for cause in causes if isinstance(cause, Fatal)), None)
    if fatal is not None:
        log.error("fatal", error=str(fatal))
    else:
        log.error("crashed", exc_info=causes[0])
    return 1


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


async def report_replica(bus: Bus, report: Callable[[], ReplicaReport]) -> None:
    """Keep this replica's entry in the `replicas` bucket fresh; it expires by itself when the process dies."""
    key = f"{report().service}.{report().replica}"

    def failed(error: Exception) -> None:  # the next report comes soon, and the bus reports that NATS is unavailable
        log.warning("replica_report_failed", error=str(error) or type(error).__name__)

    try:
        await run_periodically(lambda: bus.kv.put(REPLICAS_BUCKET, key, report()), REPLICA_TTL_S / 4, failed, at_once=True)
    finally:
        await asyncio.shield(bus.kv.delete(REPLICAS_BUCKET, key))


def _serve_http(host: str, port: int, health: Health) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, generate_latest(), CONTENT_TYPE_LATEST)
            elif self.path == "/healthz":
                self._answer_json(health.alive(), "alive" if health.alive() else "event loop stalled")
            elif self.path == "/readyz":
                self._answer_json(health.ready and health.alive(), health.detail)
            else:
                self._answer(404, b"/metrics, /healthz or /readyz\n", "text/plain")

        def _answer_json(self, good: bool, detail: str) -> None:
            self._answer(200 if good else 503, json.dumps({"ok": good, "detail": detail}).encode(), "application/json")

        def _answer(self, status: int, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # probes are not worth a line each
            pass

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        log.error("fatal", error=f"cannot listen on {host}:{port} ({error.strerror}); set MARLAAS_HTTP_PORT to a free port")
        sys.exit(1)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server
