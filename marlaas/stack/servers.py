"""NATS and PostgreSQL from Python wheels: their preparation and start on a bare machine.

Both listen on loopback only. PostgreSQL's folder is prepared by `database_folder.py`.
"""

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from common.streams import reserved_bytes
from marlaas.stack import database_folder
from marlaas.stack.database_folder import ADMIN, APP, OWNER, READER, ServerError, postgres_binary

__all__ = ["ADMIN", "APP", "OWNER", "READER", "ServerError", "postgres_binary"]

HOST = "127.0.0.1"
DATABASE = "marlaas"

NATS_CONFIG = """\
# Written by marlaas at every start.
listen: "{host}:{port}"
server_name: "marlaas"
max_payload: 8MB
jetstream {{
  store_dir: "{store}"
  # Acknowledged messages are on the disk: docs/durability.md has the reason and the cost.
  sync_interval: {sync}
  max_file_store: {max_store_bytes}
}}
"""
NATS_MAX_STORE_BYTES = 64 * 1024**3
NATS_SHARE_OF_DISK = 0.9
BLOBS_SHARE = 0.9
"""Fraction of NATS's storage for blobs: if they fill it, messages still fit, including those that delete blobs."""
MIN_BLOBS_BYTES = 64 * 1024**2
STREAMS_SHARE = 0.08
"""Fraction of NATS's storage for messages and key-value entries."""
SPARE_BYTES = 16 * 1024**2
"""Unreserved bytes: other data written to the disk between plan and start of NATS may shrink its store by at most this."""
NATS_LOG = """\
log_file: "{path}"
log_size_limit: {bytes}    # then it is renamed, and the oldest of {files} deleted
logfile_max_num: {files}
"""
NATS_LOG_BYTES, NATS_LOG_FILES = 10 * 1024**2, 5
"""Size of a NATS log file, and number of files: each refusal is a line, and any client that reaches the server can cause many."""
NATS_MEMORY = "512MiB"
"""Go's soft memory limit: nats-server periodically reads whole 8 MiB blocks, and garbage would grow to their size."""
FULL_BELOW_BYTES = 16 * 1024**2
"""Free bytes below which a disk counts as full: twice the largest message."""
STORE = "jetstream"


@dataclass(frozen=True)
class Command:
    """A process to start: its name in logs, arguments, additions to the environment, stop signal, cores that it leaves, and modules that
    the parent must have imported to fork it; none: it is spawned.
    """

    name: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    stop_signal: int = signal.SIGTERM
    leaves: Sequence[int] = ()
    imports: Sequence[str] = ()


LASTING_PORTS = (15_000, 32_000)
LASTING_ATTEMPTS = 100


def free_port() -> int:
    """A free TCP port on loopback."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def lasting_port() -> int:
    """A free port that connections do not take meanwhile: the kernel assigns their ports from its own range, by default from 32,768.

    Drawn from the system's randomness: libraries seed Python's own (vLLM does, with 0), and two processes would choose the same port.
    """
    for _ in range(LASTING_ATTEMPTS):
        port = random.SystemRandom().randrange(*LASTING_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port
    return free_port()


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex((HOST, port)) == 0


def wait_until_listening(port: int, process: subprocess.Popen[bytes], name: str, timeout_s: float = 30) -> None:
    """Wait until a server listens on `port`. Raises: ServerError if the process ends first, or at the timeout."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"{name} ended at its start, with status {process.returncode}; see its log")
        if is_listening(port):
            return
        time.sleep(0.02)
    raise ServerError(f"{name} does not listen on port {port} after {timeout_s:.0f} s; see its log")


def nats_command(
    folder: Path, port: int, *, sync: str = "always", accounts: str = "", log: Path | None = None, log_bytes: int = NATS_LOG_BYTES
) -> Command:
    """Command of nats-server with JetStream, storing below `folder`; `sync`: when it flushes to disk.

    `accounts`: account section of its configuration (`common/access/folder.py`); empty: every client that reaches it may do everything.
    `log`: file that it writes and rotates, with its maximum size; None: its standard error.
    """
    binary = _beside_python("nats-server")
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "nats.conf"
    store = folder / STORE
    store.mkdir(exist_ok=True)
    max_store_bytes = max(_max_store_bytes(store), _reserved_in(store))
    general = NATS_CONFIG.format(host=HOST, port=port, store=store, sync=sync, max_store_bytes=max_store_bytes)
    logging = NATS_LOG.format(path=log, bytes=log_bytes, files=NATS_LOG_FILES) if log else ""
    config.write_text(general + logging + accounts)
    return Command("nats", [binary, "--config", str(config)], env={"GOMEMLIMIT": os.environ.get("GOMEMLIMIT", NATS_MEMORY)})


class NatsDisk:
    """Detects the recovery of a full disk below `folder`: nats-server 2.12 keeps refusing writes until a restart."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._was_full = False

    def has_recovered(self) -> bool:
        """Whether a full disk has recovered since the last call; True once per recovery. Call it about every second."""
        before, self._was_full = self._was_full, shutil.disk_usage(self._folder / STORE).free < FULL_BELOW_BYTES
        return before and not self._was_full


def full_disk(folder: Path) -> str | None:
    """Message that the disk below `folder` is full, with advice; None if it has room."""
    free = shutil.disk_usage(folder).free
    if free >= FULL_BELOW_BYTES:
        return None
    return f"disk full: {free / 2**20:.0f} MiB are free in {folder}; free some: services and tasks wait, and resume then by themselves"


def room_objection(folder: Path) -> str | None:
    """Reason why NATS in `folder` has too little room for a deployment; None if it has enough."""
    there, needed = _max_store_bytes(folder / STORE), reserved_bytes(0) + MIN_BLOBS_BYTES + SPARE_BYTES
    if there >= needed:
        return None
    left = f"{there / 2**20:.0f} MiB are left for NATS, which is {NATS_SHARE_OF_DISK:.0%} of the free space at {folder}"
    return f"{left}; messages and adapters need {needed / 2**20:.0f} MiB: free some, or name a folder elsewhere with --data"


def _max_store_bytes(store: Path) -> int:
    """Maximum bytes of NATS's store, a fraction of the disk: above it JetStream refuses messages; on a full disk it shuts down."""
    used = sum(path.stat().st_size for path in store.rglob("*") if path.is_file()) if store.is_dir() else 0
    there = next(path for path in (store, *store.parents) if path.is_dir())
    return min(NATS_MAX_STORE_BYTES, int(NATS_SHARE_OF_DISK * (shutil.disk_usage(there).free + used)))


def _reserved_in(store: Path) -> int:
    """Bytes reserved by the streams in `store`, read from the files in which nats-server keeps their configurations.

    With a smaller store it refuses every change of a stream, even one that reserves less (`checkBytesLimits` of nats-server 2.12).
    """
    reserved = 0
    for path in store.glob("jetstream/*/streams/*/meta.inf"):
        with suppress(ValueError):  # a truncated file: nats-server reports it
            reserved += max(0, json.loads(path.read_text())["max_bytes"])
    return reserved


def bounds(folder: Path) -> "Bounds":
    """Maximum bytes of blobs and messages in NATS's `folder`, which need not exist yet."""
    return bounds_in(_max_store_bytes(folder / STORE))


@dataclass(frozen=True)
class Bounds:
    """Maximum bytes of NATS's storage, by use."""

    blobs: int
    streams: int
    """Bytes for all messages and values; in a small store their streams reserve more (`streams.reserved_bytes`)."""


def bounds_in(store_bytes: int) -> Bounds:
    """Bounds whose reservations fit into `store_bytes`, with SPARE_BYTES left."""
    messages = int(STREAMS_SHARE * store_bytes)
    return Bounds(max(0, min(int(BLOBS_SHARE * store_bytes), store_bytes - SPARE_BYTES - reserved_bytes(messages))), messages)


async def has_jetstream(port: int) -> bool | None:
    """Whether the INFO line of the server on `port` reports JetStream; None if no server responds."""
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                return bool(json.loads((await reader.readline()).removeprefix(b"INFO ")).get("jetstream", False))
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return None


def nats_url(port: int) -> str:
    return f"nats://{HOST}:{port}"


def postgres_command(folder: Path, port: int) -> Command:
    """Command of PostgreSQL on `folder`, which is prepared at first use."""
    database_folder.prepare(folder)
    # SIGINT disconnects clients and shuts down cleanly; SIGTERM would wait for every client to disconnect.
    return Command("postgres", database_folder.server(folder, port, HOST), stop_signal=signal.SIGINT)


def database_url(port: int, database: str = DATABASE, *, role: str = APP, passfile: Path | None = None) -> str:
    """Address of a database for a role. It contains no password: that is in `passfile`, or libpq's default file."""
    named = f"?passfile={quote(str(passfile))}" if passfile else ""
    return f"postgresql+psycopg://{role}@{HOST}:{port}/{database}{named}"


def create_database(port: int, database: str = DATABASE, *, passfile: Path | None = None) -> None:
    """Create the database unless it exists; waits while the server is recovering."""
    import psycopg
    from psycopg import sql

    deadline = time.monotonic() + 60
    while True:
        try:
            address = database_url(port, "postgres", role=ADMIN, passfile=passfile).replace("+psycopg", "")
            with psycopg.connect(address, autocommit=True) as connection:
                exists = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database,)).fetchone()
                if not exists:
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _beside_python(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ServerError(f"{name} is not installed here; `pip install 'marlaas[all-cpu]'` brings it, or `make install` in a checkout")
    return found
