"""The real process: from its environment to an announced version, and a clean exit."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bench.harness.measures import usage
from common import streams
from common.accelerators import ExecutorState
from common.bus import Bus
from common.messages import ReplicaReport, WeightUpdated
from marlaas.stack import servers
from tests.support.buses import message_on
from tests.support.keyed import Keyed
from tests.support.leases.executables import answer, begun, order
from tests.support.services import affinities, is_ready, service_process
from tests.support.trainer.batches import announced, batch_of, send, store
from tests.support.trainer.groups import make_groups, make_spec
from tests.support.waiting import eventually, eventually_equals
from tests.trainer.processes import environment


@pytest.fixture
def nats_url(keyed: Keyed) -> str:
    """Of `bus`, which is every other service."""
    return keyed.url


@pytest.fixture
def pools_file(model_folder: Path, tmp_path: Path) -> Path:
    file = tmp_path / "pools.toml"
    file.write_text(f'[tiny]\nmodel = "{model_folder}"\n')
    return file


async def send_batch(bus: Bus, task: str) -> None:
    named = await store(bus, task, make_groups(1, groups=1), 0)
    await send(bus, batch_of(task, 0, named, None, make_spec(task)))


async def test_process_becomes_ready_takes_a_step_and_ends_cleanly(bus: Bus, keyed: Keyed, pools_file: Path, tmp_path: Path) -> None:
    port = servers.free_port()
    settings = environment(keyed, pools_file, MARLAAS_HTTP_PORT=str(port), MARLAAS_TRAINER_CORES=str(min(os.sched_getaffinity(0))))
    with service_process("trainer_svc", settings, tmp_path / "log") as running:
        await eventually(lambda: is_ready(port) or running.poll() is not None)
        assert running.poll() is None, (tmp_path / "log").read_text()
        await send_batch(bus, "a")
        assert (await announced(bus, "a", 1)).version == 1
        await eventually(lambda: bus.kv.values(streams.REPLICAS_BUCKET, ReplicaReport))
        (report,) = await bus.kv.values(streams.REPLICAS_BUCKET, ReplicaReport)
        assert (report.service, report.pool) == ("trainer", "tiny")
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=250) == 0, (tmp_path / "log").read_text()
        assert await bus.kv.values(streams.REPLICAS_BUCKET, ReplicaReport) == []


async def test_only_what_computes_is_on_the_cores_of_a_shared_accelerator(
    bus: Bus, keyed: Keyed, model_folder: Path, tmp_path: Path
) -> None:
    """Other threads run while another executor computes there. Where the machine has no other cores, all are pinned."""
    core, port, file = max(os.sched_getaffinity(0)), servers.free_port(), tmp_path / "pools.toml"
    others = os.sched_getaffinity(0) - {core} or {core}
    file.write_text(f'[accelerator.a]\ndevice = "cpu"\ncores = "{core}"\nmemory_gib = 8\n[tiny]\nmodel = "{model_folder}"\non = "a"\n')
    own = {"ACCELERATOR": "a", "DEVICE": "cpu", "CORES": str(core)}
    settings = environment(keyed, file, **{f"MARLAAS_TRAINER_{key}": value for key, value in own.items()})
    folders = {"MARLAAS_HTTP_PORT": str(port), "MARLAAS_ACCELERATORS_DIR": str(tmp_path / "locks"), "MARLAAS_DATA_DIR": str(tmp_path)}
    with service_process("trainer_svc", settings | folders, tmp_path / "log") as running:
        await eventually(lambda: is_ready(port) or running.poll() is not None)
        assert running.poll() is None, (tmp_path / "log").read_text()
        assert all(allowed == others for allowed in affinities(running.pid).values()), "before its first wake"
        await begun(bus)
        await order(bus, "tiny", 1, wake=True, service="trainer")
        await answer(bus, "tiny", 1, lambda one: one.state is ExecutorState.AWAKE, service="trainer")
        await send_batch(bus, "a")
        assert (await announced(bus, "a", 1)).version == 1
        found = affinities(running.pid)
        assert found[running.pid] == others and all(allowed in (others, {core}) for allowed in found.values())
        computing = usage.cpu_s_on(psutil.Process(running.pid), {core})
        assert sum(computing.values()) > 0.02, "the base model was loaded, and a step taken"
        assert others == {core} or 0 < len(computing) < len(found) / 2, "the learner's thread, and those that it started"


async def test_killed_process_restores_a_checkpoint_of_megabytes_with_the_key_of_a_trainer(
    bus: Bus, keyed: Keyed, pools_file: Path, tmp_path: Path
) -> None:
    """And another task begins with the adapter, of megabytes too."""
    large = make_spec("a", lora={"rank": 512})
    settings = environment(keyed, pools_file)
    with service_process("trainer_svc", settings, tmp_path / "first"):
        await send(bus, batch_of("a", 0, await store(bus, "a", make_groups(1, groups=1), 0), None, large))
        first = await announced(bus, "a", 1)
    assert first.checkpoint.size_bytes > first.adapter.blob.size_bytes > 4 * 2**20
    with service_process("trainer_svc", settings, tmp_path / "second"):
        await send(bus, batch_of("a", 1, await store(bus, "a", make_groups(2, groups=1), 1), first.checkpoint, large))
        other = batch_of("b", 0, await store(bus, "b", make_groups(3, groups=1), 0), None, large)
        await send(bus, other.model_copy(update={"start": first.adapter.model_copy(update={"task": "b", "version": 0})}))
        for task, version in (("a", 2), ("b", 1)):
            await announced(bus, task, version)
    assert await bus.streams.backlog(streams.FAILED) == 0


@pytest.mark.parametrize("point", ["after_blobs:2", "before_ack:2"])
async def test_crash_amid_a_shared_step_costs_no_task_a_version_and_gives_none_two(
    bus: Bus, keyed: Keyed, pools_file: Path, tmp_path: Path, point: str
) -> None:
    """The process dies when one of four tasks in a shared step reaches the crash point; the next process finishes the rest."""
    settings = environment(keyed, pools_file, MARLAAS_TRAINER_SHARED_STEPS="4")
    for task in "abcd":
        await send_batch(bus, task)
    with service_process("trainer_svc", settings | {"MARLAAS_CRASH_POINT": point}, tmp_path / "first") as running:
        await eventually(lambda: running.poll() is not None)
        assert running.returncode == -signal.SIGKILL, (tmp_path / "first").read_text()
    with service_process("trainer_svc", settings, tmp_path / "second"):
        await eventually_equals(lambda: bus.streams.backlog(streams.BATCHES), 0)
    assert await bus.streams.backlog(streams.FAILED) == 0
    assert await bus.streams.backlog(streams.WEIGHTS) == 4
    for task in "abcd":
        assert (await message_on(bus, streams.WEIGHTS, f"weight-updated.tiny.{task}")).read(WeightUpdated).version == 1


@pytest.mark.parametrize(
    ("more", "line", "status"),
    [
        ({"MARLAAS_TRAINER_POOL": "large"}, "MARLAAS_TRAINER_POOL is 'large', but", 1),
        ({"MARLAAS_TRAINER_CORES": "two"}, "MARLAAS_TRAINER_CORES: ", 2),
        ({"MARLAAS_TRAINER_THREDS": "2"}, "MARLAAS_TRAINER_THREDS is not a setting of this service", 2),
        ({"MARLAAS_TRAINER_CORES": "4000"}, "cannot pin to cores [4000]", 1),
    ],
)
async def test_bad_setting_ends_the_process_with_one_clear_line(
    bus: Bus, keyed: Keyed, pools_file: Path, tmp_path: Path, more: dict[str, str], line: str, status: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainer_svc"],
        env=environment(keyed, pools_file, **more),
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == status
    assert line in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
