"""Servers as child processes of the tests."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marlaas.stack import servers
from marlaas.stack.servers import Command

MEMORY, ROOM_BYTES = Path("/dev/shm"), 2 * 1024**3
"""File system in memory, used if it has this much room. On a disk a copied database of nine hundred files takes up to nine times as long,
and a server with its streams twice as much computing."""


@contextmanager
def fast_folder() -> Iterator[Path]:
    """A folder for a server's data, until the block ends."""
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM_BYTES
    with tempfile.TemporaryDirectory(prefix="marlaas-test-", dir=MEMORY if has_room else None) as name:
        yield Path(name)


@contextmanager
def running(command: Command, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The server as a child process that ends with the block."""
    with log.open("ab") as output:
        process = subprocess.Popen(command.argv, stdout=output, stderr=output, env=os.environ | command.env)
    try:
        servers.wait_until_listening(port, process, command.name, timeout_s=240)
        yield process
    finally:
        process.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown; SIGTERM would wait for its clients
        process.wait(timeout=250)
