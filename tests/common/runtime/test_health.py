"""Probes of a process's health."""

import socket
import struct
from urllib.request import urlopen

import pytest

from common.runtime.health import Health, serve_http


def test_probe_that_gives_up_leaves_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    server = serve_http("127.0.0.1", 0, Health())
    server.daemon_threads = False  # so that `server_close` waits for them
    port = server.server_address[1]
    for sent in (b"", b"GET /hea", b"GET /metrics HTTP/1.1\r\n\r\n") * 5:
        with socket.create_connection(("127.0.0.1", port)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its end is a reset
            probe.sendall(sent)
    assert urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).status == 200
    server.shutdown()
    server.server_close()
    assert capfd.readouterr().err == ""
