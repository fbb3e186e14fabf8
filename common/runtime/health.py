"""Health of a process, and its HTTP endpoints /metrics, /healthz and /readyz."""

import asyncio
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from common.heartbeats import STALLED_S
from common.runtime.process import collect_rarely

log = structlog.get_logger()


class Health:
    """State behind /healthz and /readyz: alive while the event loop runs, ready once the service is."""

    def __init__(self) -> None:
        self.ready = False
        self.detail = "starting"
        self.became_ready = asyncio.Event()
        """Set once it was ready for the first time."""
        self._beat = time.monotonic()

    def set_ready(self, detail: str = "ready") -> None:
        if not self.ready:
            collect_rarely()
        self.ready, self.detail = True, detail
        self.became_ready.set()
        log.info("ready", detail=detail)

    def set_unready(self, detail: str) -> None:
        """`detail`: the missing dependency."""
        self.ready, self.detail = False, detail
        log.warning("unready", detail=detail)

    async def beat(self) -> None:
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(1)

    def alive(self) -> bool:
        return time.monotonic() - self._beat < STALLED_S


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A probe that disconnects is not an error of the service, and gets no traceback."""
        if not isinstance(error := sys.exception(), ConnectionError):
            log.error("probe_unanswered", client=f"{client_address} of {request}", error=repr(error))


def serve_http(host: str, port: int, health: Health) -> ThreadingHTTPServer:
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

        def log_message(self, format: str, *args: object) -> None:  # probes do not get a log line each
            pass

    try:
        server = _Server((host, port), Handler)
    except OSError as error:
        log.error("fatal", error=f"cannot listen on {host}:{port} ({error.strerror}); set MARLAAS_HTTP_PORT to a free port")
        sys.exit(1)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server
