"""The real sampler and the real trainer of one pool take turns on one core, as a test orders; there is no scheduler."""

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from bench.plex.real.recorder import Executor, Recorder
from common import streams
from common.accelerators import ExecutorState, Tier
from common.bus import Bus, Outgoing
from common.leases import holders
from common.messages import (
    ChatMessage,
    ExecutorReport,
    LeaseDone,
    LeaseOrder,
    ReplicaReport,
    SampleTurns,
    TokenRecord,
    TurnRequest,
    TurnsSampled,
)
from common.streams import LEASES, REPLICAS_BUCKET, TURNS
from marlaas.stack import servers
from tests.support.buses import message_on
from tests.support.groups import group_context
from tests.support.keyed import Keyed
from tests.support.leases.executables import shorten_leases
from tests.support.paths import ROOT
from tests.support.services import affinities, service_process, without_settings
from tests.support.trainer.batches import announced, batch_of, send, store
from tests.support.trainer.groups import make_groups, make_spec
from tests.support.waiting import eventually

ROLLOUT, TRAINER = "rollout-tiny", "trainer-tiny"
GIB = 2**30
TASK = "a"
CORE = min(os.sched_getaffinity(0))
"""The accelerator."""

POOLS = """
[accelerator.a]
device = "cpu"
cores = "{core}"
memory_gib = {memory_gib}

[tiny]
model = "{root}/models/tiny"
on = "a"
context_tokens = 512
sequences = 8
kv_cache_gib = 0.25
train_tokens = 1024
"""


@pytest.fixture
def nats_url(keyed: Keyed) -> str:
    """Of `bus`, which is every other service."""
    return keyed.url


@dataclass
class Executors:
    """Both processes, and what they say."""

    bus: Bus
    keyed: Keyed
    folder: Path
    env: dict[str, str]
    ports: dict[str, int]
    stack: ExitStack
    processes: dict[str, subprocess.Popen[bytes]]

    def start(self, service: str) -> None:
        key = str(self.keyed.keys.credentials(service))
        env = self.env | {"MARLAAS_HTTP_PORT": str(self.ports[service]), "MARLAAS_NATS_CREDS": key}
        log = self.folder / f"{service}.log"
        self.processes[service] = self.stack.enter_context(service_process(f"{service}_svc", env, log, leaves=[CORE]))

    def present(self) -> dict[str, Executor]:
        """Those that live now."""
        found: dict[str, Executor] = {}
        for service, process in self.processes.items():
            with suppress(psutil.NoSuchProcess):
                found[service] = Executor(psutil.Process(process.pid))
        return found

    def detail(self, service: str) -> str:
        """What its health endpoint says; empty while it is not ready."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[service]}/readyz", timeout=5) as answer:
                return str(json.load(answer)["detail"])
        except OSError:
            assert self.processes[service].poll() is None, (self.folder / f"{service}.log").read_text()[-3000:]
            return ""

    async def order(self, executor: str, epoch: int, *, wake: bool, tier: Tier = Tier.HOST) -> None:
        message = LeaseOrder(accelerator="a", executor=executor, epoch=epoch, wake=wake, tier=tier)
        await self.bus.publish(Outgoing(streams.lease_order("a", executor), message, f"{executor}:{epoch}"))

    async def answer(self, executor: str, epoch: int, state: ExecutorState) -> LeaseDone:
        found: list[LeaseDone] = []

        async def there() -> bool:
            subject = streams.lease_done("a", executor)
            done = [delivery.read(LeaseDone) async for delivery in self.bus.streams.stored(LEASES, subject)]
            found[:] = [one for one in done if (one.epoch, one.state) == (epoch, state)]
            assert found or not any(one.failure for one in done if one.epoch == epoch), done
            return bool(found)

        await eventually(there)
        return found[-1]

    async def report(self, executor: str) -> ExecutorReport:
        async with self.bus.requests.listening(streams.executor_now("a", executor)) as listening:
            delivery = await listening.next(60.0)
            assert delivery is not None
            return delivery.read(ExecutorReport)

    @property
    def locks(self) -> Path:
        return self.folder / "accelerators" / "a"


@contextmanager
def executors(bus: Bus, keyed: Keyed, folder: Path, memory_gib: float) -> Generator[Executors]:
    pools_file = folder / "pools.toml"
    pools_file.write_text(POOLS.format(root=ROOT, memory_gib=memory_gib, core=CORE))
    env = without_settings() | {
        "MARLAAS_NATS_URL": keyed.url,
        "MARLAAS_POOLS_FILE": str(pools_file),
        "MARLAAS_ACCELERATORS_DIR": str(folder / "accelerators"),
        "MARLAAS_DATA_DIR": str(folder / "data"),
    }
    for service in ("ROLLOUT", "TRAINER"):
        own = {"POOL": "tiny", "ACCELERATOR": "a", "DEVICE": "cpu", "CORES": str(CORE)}
        env |= {f"MARLAAS_{service}_{name}": value for name, value in own.items()}
    with ExitStack() as stack:
        yield Executors(bus, keyed, folder, env, {service: servers.lasting_port() for service in ("rollout", "trainer")}, stack, {})


async def ask(bus: Bus, group: int) -> str:
    """Ask for a turn of one member; the subject of the answer."""
    context = group_context(TASK, group, tenant="acme", pool="tiny", size=1, version=0, adapter=None, family="code")
    question = [ChatMessage(role="user", content="What is 3 + 4?")]
    request = TurnRequest(member=0, turn=0, transcript=TokenRecord(), messages=question, state=b"")
    message = SampleTurns(group=context, members=[request])
    await bus.publish(Outgoing(streams.sample("tiny", TASK, context.trajectory(0)), message, f"ask:{group}"))
    return streams.turn("code", TASK, context.trajectory(0))


async def tokens(bus: Bus, subject: str) -> bytes:
    answer = (await message_on(bus, TURNS, subject)).read(TurnsSampled)
    assert answer.members[0].failure is None
    return answer.members[0].transcript.ids


@pytest.mark.slow
async def test_sampler_and_trainer_take_turns_on_one_core(bus: Bus, keyed: Keyed, tmp_path: Path) -> None:
    """A recorder outside of them sees one compute at a time: also where one is killed, and starts again while the other computes."""
    await shorten_leases(bus, 4.0)
    with executors(bus, keyed, tmp_path, memory_gib=0.4) as both, Recorder(both.present, both.locks, [CORE]) as recording:
        for service in ("rollout", "trainer"):
            both.start(service)
        for service in ("rollout", "trainer"):
            await eventually(lambda service=service: both.detail(service) == "waits for its accelerator 'a'")
        idle = await both.report(ROLLOUT)
        assert (idle.state, idle.epoch, idle.ready) == (ExecutorState.COLD, 0, 0) and idle.device_bytes > 0.25 * GIB
        assert not holders(both.locks).computing and holders(both.locks).memory == {}
        reports = {one.service: one for one in await bus.kv.values(REPLICAS_BUCKET, ReplicaReport)}
        assert reports["rollout"].sequences == 8 and reports["rollout"].kv_tokens > 100_000

        first = await ask(bus, 1)
        await eventually(lambda: _is_ready(both, ROLLOUT, 1))
        await both.order(ROLLOUT, 1, wake=True)
        woken = await both.answer(ROLLOUT, 1, ExecutorState.AWAKE)
        assert (woken.from_tier, woken.tier) == (Tier.NONE, Tier.DEVICE)
        told = await tokens(bus, first)
        assert holders(both.locks).computing and list(holders(both.locks).memory) == [ROLLOUT]
        assert both.detail("rollout").startswith("sampling for pool 'tiny'")
        _assert_engine_alone_is_on_the_core(both.processes["rollout"].pid)

        spec = make_spec(TASK, correction={"max_sampler_mismatch": 100})
        named = await store(bus, TASK, make_groups(1, groups=1), 0)
        await send(bus, batch_of(TASK, 0, named, None, spec))
        await eventually(lambda: _is_ready(both, TRAINER, 1))
        await both.order(ROLLOUT, 2, wake=False)
        await both.order(TRAINER, 2, wake=True)
        parked = await both.answer(ROLLOUT, 2, ExecutorState.PARKED)
        assert parked.tier is Tier.HOST and parked.served.get(TASK, 0) > 0 and parked.pieces == 1
        assert parked.freed_bytes is not None and parked.freed_bytes > 0.9 * 0.25 * GIB
        await both.answer(TRAINER, 2, ExecutorState.AWAKE)
        assert list(holders(both.locks).memory) == [TRAINER]
        assert (await announced(bus, TASK, 1)).version == 1
        trained = await both.report(TRAINER)
        assert trained.running is None or trained.begun

        both.processes["trainer"].send_signal(signal.SIGKILL)
        both.processes["trainer"].wait()
        assert not holders(both.locks).computing and holders(both.locks).memory == {}
        second = await ask(bus, 2)
        await both.order(ROLLOUT, 3, wake=True)
        both.start("trainer")
        again = await both.answer(ROLLOUT, 3, ExecutorState.AWAKE)
        assert again.from_tier is Tier.HOST and again.at_s > parked.at_s
        await tokens(bus, second)
        assert told and (await both.answer(TRAINER, 2, ExecutorState.COLD)).tier is Tier.NONE
        assert recording.held_by_several() == 0 and recording.computing_together() == []
        assert all(spent > 0.02 for spent in recording.busy_s(0.0, time.time()).values()), recording.busy_s(0.0, time.time())


def _assert_engine_alone_is_on_the_core(service: int) -> None:
    others = os.sched_getaffinity(0) - {CORE} or {CORE}
    assert set(map(frozenset, affinities(service).values())) == {frozenset(others)}
    assert {CORE} in [set(child.cpu_affinity() or []) for child in psutil.Process(service).children()]


async def _is_ready(both: Executors, executor: str, count: int) -> bool:
    return (await both.report(executor)).ready == count


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"MARLAAS_TRAINER_ACCELERATOR": "b"}, "MARLAAS_TRAINER_ACCELERATOR is 'b', but"),
        ({"MARLAAS_ACCELERATORS_DIR": "/proc/accelerators"}, "MARLAAS_ACCELERATORS_DIR: /proc/accelerators/a cannot be used for locks"),
    ],
)
async def test_executor_that_cannot_take_turns_does_not_start(
    bus: Bus, keyed: Keyed, tmp_path: Path, more: dict[str, str], line: str
) -> None:
    with executors(bus, keyed, tmp_path, memory_gib=0.4) as both:
        both.env |= more
        both.start("trainer")
        await eventually(lambda: both.processes["trainer"].poll() is not None)
        assert both.processes["trainer"].returncode == 1
        assert line in (tmp_path / "trainer.log").read_text() and "Traceback" not in (tmp_path / "trainer.log").read_text()
