"""Services whose servers start late, or vanish: they wait and report it, stay alive, and continue when the server is back."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from common import streams
from common.bus import Bus, Outgoing
from common.messages import SubmitTask
from marlaas.stack import database_folder, servers
from scheduler_svc.migrate import migrate
from tests.support.servers import running
from tests.support.services import is_ready, service_process, without_settings
from tests.support.waiting import eventually

PATIENCE_S = 120.0
"""A bound; it takes seconds."""


@dataclass(frozen=True)
class Process:
    """A service as it runs anywhere, its log, and whether it says that it is ready."""

    popen: subprocess.Popen[bytes]
    log: Path
    port: int

    def said(self, event: str) -> int:
        """Number of log lines of `event`."""
        return sum(json.loads(line)["event"] == event for line in self.log.read_text().splitlines() if line.startswith("{"))

    def is_ready(self) -> bool:
        assert self.popen.poll() is None, self.log.read_text()
        return is_ready(self.port)

    async def says(self, event: str, times: int = 1) -> None:
        """Waits until it has said so that often."""

        def enough() -> bool:
            assert self.popen.poll() is None, self.log.read_text()
            return self.said(event) >= times

        await eventually(enough, PATIENCE_S)


@contextmanager
def service(module: str, log: Path, **settings: str) -> Iterator[Process]:
    port = servers.lasting_port()
    with service_process(module, without_settings() | {"MARLAAS_HTTP_PORT": str(port), **settings}, log) as popen:
        yield Process(popen, log, port)


async def handles_a_message(bus: Bus, subject: str, number: int) -> None:
    """Garbage becomes a dead letter, so the service that stores one is at work."""
    await bus.publish_raw(subject, b"\xff", f"garbage:{number}", {})

    async def is_dead_letter() -> bool:
        return await bus.streams.backlog(streams.FAILED) >= number

    await eventually(is_dead_letter, PATIENCE_S)


@contextmanager
def nats(folder: Path, port: int) -> Iterator[Callable[[], None]]:
    """A server, and what kills it."""
    with running(servers.nats_command(folder / "nats", port), port, folder / "nats.log") as process:

        def kill() -> None:
            process.send_signal(signal.SIGKILL)
            process.wait()

        yield kill


@pytest.mark.parametrize(
    ("module", "settings", "subject"),
    [
        ("env_svc", {"MARLAAS_ENV_FAMILIES": "module", "MARLAAS_ENV_WORKERS": "1"}, "prompts.check.module.a"),
        ("trainer_svc", {"MARLAAS_TRAINER_POOL": "tiny"}, "trajectories.batch.tiny.a"),
    ],
)
async def test_service_waits_for_nats_and_continues_when_it_returns(
    module: str, settings: dict[str, str], subject: str, tmp_path: Path
) -> None:
    port = servers.lasting_port()
    url = servers.nats_url(port)
    with service(module, tmp_path / "service.log", MARLAAS_NATS_URL=url, **settings) as process:
        await process.says("nats_unreachable", times=2)
        assert not process.is_ready()
        with nats(tmp_path, port) as kill:
            await process.says("streams_not_declared")
            async with await Bus.connect(url, "test") as bus:
                await bus.declare()
                await eventually(process.is_ready, PATIENCE_S)
                await handles_a_message(bus, subject, 1)
            kill()
        before = process.said("nats_unreachable")
        await process.says("nats_disconnected")
        await process.says("nats_unreachable", times=before + 2)
        with nats(tmp_path, port):
            await process.says("nats_reconnected")
            async with await Bus.connect(url, "test") as bus:
                await handles_a_message(bus, subject, 2)


async def test_scheduler_waits_for_nats_and_postgres_and_continues_when_they_return(tmp_path: Path) -> None:
    nats_port, postgres_port = servers.lasting_port(), servers.free_port()
    passfile = database_folder.passfile(tmp_path / "postgres")
    url, database = servers.nats_url(nats_port), servers.database_url(postgres_port, passfile=passfile)
    settings = {"MARLAAS_NATS_URL": url, "MARLAAS_SCHEDULER_DATABASE_URL": database}
    postgres, postgres_log = servers.postgres_command(tmp_path / "postgres", postgres_port), tmp_path / "postgres.log"

    async def answers(bus: Bus, task: str) -> None:
        """The job is rejected with its reasons, which takes both servers."""
        await bus.publish(Outgoing(streams.job("submit", "acme"), SubmitTask(task=task, tenant="acme", spec={}), f"submit:{task}"))
        await eventually(lambda: bus.streams.last(streams.EVENTS, streams.events("acme", task)), PATIENCE_S)

    with service("scheduler_svc", tmp_path / "service.log", **settings) as process:
        await process.says("nats_unreachable", times=2)
        with nats(tmp_path, nats_port) as kill:
            await process.says("postgres_unreachable", times=2)
            assert not process.is_ready()
            with running(postgres, postgres_port, postgres_log) as server:
                servers.create_database(postgres_port, passfile=passfile)
                await process.says("postgres_refuses")
                owner, admin = (
                    servers.database_url(postgres_port, role=role, passfile=passfile) for role in (servers.OWNER, servers.ADMIN)
                )
                migrate(owner, admin_url=admin)
                await eventually(process.is_ready, PATIENCE_S)
                bus = await Bus.connect(url, "test")
                await answers(bus, "first")
                own = psutil.Process(server.pid).children(recursive=True)
                server.send_signal(signal.SIGKILL)
                server.wait()
                psutil.wait_procs(own)  # they notice by themselves, and keep another from starting until then
                await process.says("tick_postponed", times=2)
            with running(postgres, postgres_port, postgres_log):
                await answers(bus, "second")
                await bus.close()
                kill()
                await process.says("nats_disconnected")
                with nats(tmp_path, nats_port):
                    async with await Bus.connect(url, "test") as bus:
                        await answers(bus, "third")
