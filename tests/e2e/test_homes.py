"""One pool with a real sampler and a real trainer on each of two cores: messages of a task go to its homes, and no executor is needed."""

import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from common import streams
from common.bus import Bus
from common.messages import SampleTurns, TrainBatch
from common.pools import read_accelerators, read_pools
from marlaas.stack import servers
from scheduler_svc.base.database import Database
from tests.support.keyed import Keyed
from tests.support.paths import ROOT
from tests.support.scheduler.executors import a_scheduler
from tests.support.scheduler.stages import submission
from tests.support.scheduler.statements import select
from tests.support.services import is_ready, service_process, without_settings
from tests.support.waiting import eventually

POOLS = """
[accelerator.a]
device = "cpu"
cores = "{first}"
memory_gib = 1.0

[accelerator.b]
device = "cpu"
cores = "{last}"
memory_gib = 1.0

[tiny]
model = "{root}/models/tiny"
generate_on = ["a", "b"]
train_on = ["a", "b"]
context_tokens = 512
sequences = 16
kv_cache_gib = 0.25
train_tokens = 1024
"""
STEPS = 12
SERVED = {"rollout": "marlaas_rollout_sampled_tokens_total", "trainer": "marlaas_trainer_tokens_total"}
HOMES = "SELECT task, service, replica, from_version FROM task_homes"


def spec(task: str) -> dict[str, Any]:
    return {
        "name": task,
        "tenant": f"tenant-{task}",
        "pool": "tiny",
        "steps": STEPS,
        "environment": {"name": "reasoning_gym:lcm", "options": {"min_value": 1, "max_value": 12}},
        "algorithm": {"group_size": 4, "groups_per_step": 2, "max_staleness": 0},
        "lora": {"rank": 4, "alpha": 8},
        "sampling": {"max_tokens": 16},
        "limits": {"max_prompt_tokens": 128},
    }


@pytest.fixture
def nats_url(keyed: Keyed) -> str:
    """Of `bus`, which is every other service."""
    return keyed.url


class Executors:
    """The processes by service and accelerator."""

    def __init__(self, folder: Path, keyed: Keyed, stack: ExitStack) -> None:
        self._folder = folder
        self._keyed = keyed
        self._stack = stack
        self._env = without_settings() | {
            "MARLAAS_NATS_URL": keyed.url,
            "MARLAAS_POOLS_FILE": str(folder / "pools.toml"),
            "MARLAAS_ACCELERATORS_DIR": str(folder / "accelerators"),
        }
        self.processes: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        self.ports: dict[tuple[str, str], int] = {}

    def start(self, service: str, accelerator: str, **settings: str) -> None:
        key, name = (service, accelerator), f"{service}-{accelerator}"
        self.ports[key] = servers.lasting_port()
        own = {"MARLAAS_HTTP_PORT": str(self.ports[key]), "MARLAAS_DATA_DIR": str(self._folder / name)}
        own["MARLAAS_NATS_CREDS"] = str(self._keyed.keys.credentials(service))
        own |= {f"MARLAAS_{service.upper()}_{setting}": value for setting, value in settings.items()}
        process = service_process(f"{service}_svc", self._env | own, self.log(service, accelerator))
        self.processes[key] = self._stack.enter_context(process)

    def log(self, service: str, accelerator: str) -> Path:
        return self._folder / f"{service}-{accelerator}.log"

    def are_ready(self) -> bool:
        for (service, accelerator), process in self.processes.items():
            assert process.poll() is None, self.log(service, accelerator).read_text()[-3000:]
        return all(is_ready(port) for port in self.ports.values())

    def has_served(self, service: str, accelerator: str) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[service, accelerator]}/metrics", timeout=5) as answer:
            found = re.search(rf"^{SERVED[service]} (\S+)$", answer.read().decode(), re.MULTILINE)
        return found is not None and float(found[1]) > 0

    def kill(self, service: str, accelerator: str) -> None:
        process = self.processes.pop((service, accelerator))
        process.send_signal(signal.SIGKILL)
        process.wait()


@contextmanager
def executors(folder: Path, keyed: Keyed) -> Generator[Executors]:
    cores = sorted(os.sched_getaffinity(0))
    assert len(cores) > 1, "each accelerator is a core"
    (folder / "pools.toml").write_text(POOLS.format(root=ROOT, first=cores[0], last=cores[-1]))
    with ExitStack() as stack:
        found = Executors(folder, keyed, stack)
        found.start("env", "", WORKERS="2")
        for accelerator, core in (("a", cores[0]), ("b", cores[-1])):
            for service in ("rollout", "trainer"):
                found.start(service, accelerator, POOL="tiny", ACCELERATOR=accelerator, DEVICE="cpu", CORES=str(core))
        yield found


class Sent:
    """What was sent to samplers and trainers: task, service, version and queue."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, int, str]] = []

    @asynccontextmanager
    async def heard(self, nats_url: str) -> AsyncGenerator[None]:
        client = Client()
        await client.connect(nats_url)

        async def on_message(message: Any) -> None:
            _, kind, queue, task, *_ = message.subject.split(".")
            about = SampleTurns.decode(message.data).group if kind == "sample" else TrainBatch.decode(message.data)
            self.messages.append((task, "rollout" if kind == "sample" else "trainer", about.version, queue))

        for subject in ("prompts.sample.>", "trajectories.batch.>"):
            await client.subscribe(subject, cb=on_message)
        yield
        await client.drain()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_tasks_have_homes_and_go_on_when_the_executors_of_one_accelerator_are_killed(
    bus: Bus, keyed: Keyed, database_url: str, tmp_path: Path
) -> None:
    sent = Sent()
    with executors(tmp_path, keyed) as them:
        pools = read_pools(tmp_path / "pools.toml")
        accelerators = read_accelerators(tmp_path / "pools.toml", pools)
        async with a_scheduler(bus, database_url, pools=pools, accelerators=accelerators) as (_, database, _):
            await eventually(them.are_ready)
            await eventually(lambda: _is(database, "SELECT count(*) FROM executors WHERE has_queue", [(4,)]))
            async with sent.heard(keyed.url):
                for task in ("s", "t"):
                    await bus.publish(submission(task, spec(task)))
                await eventually(lambda: _is(database, "SELECT count(*) FROM tasks WHERE version >= 3", [(2,)]))
                homes = {(row.task, row.service): row for row in await select(database, HOMES)}
                assert len(homes) == 4
                for service in SERVED:
                    assert all(them.has_served(service, row.replica) for key, row in homes.items() if key[1] == service)
                lost = homes["t", "rollout"].replica
                left = next(name for name in ("a", "b") if name != lost)
                logged = len(them.log("rollout", left).read_text())
                for service in SERVED:
                    them.kill(service, lost)
                assert not await _is(database, "SELECT count(*) FROM tasks WHERE version >= 3 AND state = 'finished'", [(2,)])
                before = len(sent.messages)
                await eventually(lambda: _is(database, "SELECT count(*) FROM tasks WHERE state = 'finished'", [(2,)]))
    for task, service, version, queue in sent.messages[:before]:
        if version >= homes[task, service].from_version:
            assert queue == streams.queue("tiny", homes[task, service].replica)
    assert {queue for *_, queue in sent.messages[:before]} >= {f"tiny@{row.replica}" for row in homes.values()}
    assert {queue for *_, queue in sent.messages[before:]} >= {"tiny"}, "what no home can do is for all"
    assert "queue_taken_over" in them.log("rollout", left).read_text()[logged:]


async def _is(database: Database, query: str, expected: list[tuple[object, ...]]) -> bool:
    return [tuple(row) for row in await select(database, query)] == expected
