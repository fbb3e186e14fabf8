"""Three nats-server processes on loopback that are one cluster, with the configuration that is shipped."""

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from marlaas.stack import servers
from tests.support.paths import ROOT
from tests.support.waiting import eventually

DEPLOY = ROOT / "deploy"
NODES = 3
CAUGHT_UP_S = 120.0
"""Maximum time until a restarted node has all data; it takes seconds."""


@dataclass(frozen=True)
class Ports:
    """Ports of one node."""

    clients: int
    monitor: int
    routes: int


def _free_ports() -> list[Ports]:
    """Distinct ports: all are held until each is known."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.create_server((servers.HOST, 0))) for _ in range(3 * NODES)]
        numbers = iter([int(probe.getsockname()[1]) for probe in probes])
        return [Ports(next(numbers), next(numbers), next(numbers)) for _ in range(NODES)]


class Cluster:
    """Its nodes, by number; each keeps its files below `folder`.

    `access`: the part of the configuration that says who may connect, from a node's folder of accounts; default: every client.
    """

    def __init__(self, folder: Path, access: Callable[[Path], str] | None = None) -> None:
        self._folder = folder
        self._access = access
        self._ports = _free_ports()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return ",".join(self.urls)

    @property
    def urls(self) -> list[str]:
        """Each node's."""
        return [servers.nats_url(ports.clients) for ports in self._ports]

    def start(self, node: int) -> None:
        ports, others = self._ports[node], [other for number, other in enumerate(self._ports) if number != node]
        environment = {
            "NATS_NAME": f"nats-{node + 1}",
            "NATS_LISTEN": f"{servers.HOST}:{ports.clients}",
            "NATS_MONITOR": f"{servers.HOST}:{ports.monitor}",
            "NATS_STORE": str(self._folder / str(node)),
            "NATS_CLUSTER_LISTEN": f"{servers.HOST}:{ports.routes}",
            "NATS_ROUTES": f"[{', '.join(f'nats://{servers.HOST}:{other.routes}' for other in others)}]",
        }
        config = self._folder / f"{node}.conf.d"
        (config / "access").mkdir(parents=True, exist_ok=True)
        shutil.copy(DEPLOY / "nats-cluster.conf", config / "nats.conf")
        access = self._access(self._folder / str(node) / "accounts") if self._access else ""
        (config / "access" / "nats.conf").write_text(access)
        binary = servers.nats_command(self._folder / "unused", ports.clients).argv[0]
        with (self._folder / f"{node}.log").open("ab") as log:
            self._processes[node] = subprocess.Popen(
                [binary, "--config", str(config / "nats.conf")], env=os.environ | environment, stdout=log, stderr=log
            )

    def kill(self, node: int) -> None:
        process = self._processes.pop(node)
        process.send_signal(signal.SIGKILL)
        process.wait()

    async def caught_up(self) -> None:
        """Returns once every node has everything that the others have, so that any of them may die."""
        for ports in self._ports:
            await eventually(lambda ports=ports: _has_everything(ports), CAUGHT_UP_S)

    def stop(self) -> None:
        for node in list(self._processes):
            self.kill(node)


def _has_everything(ports: Ports) -> bool:
    try:
        with urlopen(f"http://{servers.HOST}:{ports.monitor}/healthz", timeout=5) as answer:
            return json.load(answer)["status"] == "ok"
    except (URLError, OSError):
        return False


@contextmanager
def running_cluster(folder: Path, access: Callable[[Path], str] | None = None) -> Generator[Cluster]:
    """A cluster of which no node was started yet; those that were end with the block."""
    cluster = Cluster(folder, access)
    try:
        yield cluster
    finally:
        cluster.stop()
