"""What a guest attempts to reach outside of its sandbox."""

import asyncio
import ctypes
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from env_svc.hosted.confinement import RUNS, USERS
from env_svc.sandboxes.interpreter import FIRST_USER

IPC_CREAT, IPC_RMID = 0o1000, 0
SECRET = "the-secret-of-the-service"
BOMB_S = 3.0
"""Seconds that a bomb has before its call is overdue."""


@dataclass(frozen=True)
class Target:
    """What the attempts aim at, all of it there and open to every user."""

    names: dict[str, str]
    reached: asyncio.Event

    def aimed(self, attempt: str) -> str:
        for name, value in self.names.items():
            attempt = attempt.replace(name, value)
        return attempt


@asynccontextmanager
async def aimed_at(nats_url: str, postgres_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Target]:
    """Files, sockets, a segment of shared memory and servers, all open to every user."""
    for folder in (tmp_path, *tmp_path.parents):
        if str(folder).startswith("/tmp/"):
            folder.chmod(0o777)
    (tmp_path / "home").mkdir()
    name = f"marlaas-secret-{os.getpid()}"
    places = [tmp_path / "secret", tmp_path / "home" / ".creds", Path("/tmp") / name, Path("/dev/shm") / name]
    for place in places:
        place.write_text(SECRET)
        place.chmod(0o666)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MARLAAS_NATS_URL", SECRET)
    reached = asyncio.Event()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        writer.close()

    libc = ctypes.CDLL(None)
    key = os.getpid()
    segment = libc.shmget(key, 4096, IPC_CREAT | 0o666)
    taken: list[int] = []
    previous = [signal.signal(number, lambda *_: taken.append(1)) for number in (signal.SIGUSR1,)]
    with ExitStack() as stack:
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind("\0" + name)
        abstract.listen()
        descriptor = os.open(tmp_path / "secret", os.O_RDONLY)
        stack.callback(os.close, descriptor)
        os.set_inheritable(descriptor, True)
        async with (
            await asyncio.start_server(connected, "127.0.0.1") as metrics,
            await asyncio.start_unix_server(connected, tmp_path / "socket"),
        ):
            (tmp_path / "socket").chmod(0o777)
            names = {
                "HOST": str(os.getpid()),
                "NATS": nats_url.rpartition(":")[2],
                "POSTGRES": str(postgres_port),
                "METRICS": str(metrics.sockets[0].getsockname()[1]),
                "PLACE": str(tmp_path),
                "SECRET_NAME": name,
                "SHARED_KEY": str(key),
            }
            yield Target(names, reached)
    signal.signal(signal.SIGUSR1, previous[0])
    libc.shmctl(segment, IPC_RMID, None)
    for place in places[2:]:
        place.unlink()
    assert not taken, "a signal reached the service"
    assert not (tmp_path / "left").exists()


def has_succeeded(answer: str) -> bool:
    return "GOT" in answer or SECRET in answer


def processes_of_hosts() -> list[int]:
    """Processes of the users that this process's hosts have, where the tests are root."""
    first = FIRST_USER + RUNS + os.getpid() * 256 % USERS
    found: list[int] = []
    for status in Path("/proc").glob("[0-9]*"):
        try:
            if first <= status.stat().st_uid < first + 256:
                found.append(int(status.name))
        except FileNotFoundError:
            continue
    return found
