"""Servers as child processes of the tests."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marlaas.stack import servers
from marlaas.stack.servers import Command


@contextmanager
def running(command: Command, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The server as a child process that ends with the block."""
    with log.open("ab") as output:
        process = subprocess.Popen(command.argv, stdout=output, stderr=output, env=os.environ | command.env)
    try:
        servers.wait_until_listening(port, process, command.name)
        yield process
    finally:
        process.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown; SIGTERM would wait for its clients
        process.wait(timeout=250)
