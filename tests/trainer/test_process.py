"""The real process: from its environment to an announced version, and a clean end."""

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from common import streams
from common.bus import Bus, Outgoing
from common.messages import BatchGroup, BatchMember, ReplicaReport, TrainBatch, TrajectoriesScored, WeightUpdated
from marlaas import servers
from tests.conftest import eventually
from tests.trainer.conftest import group_context, make_groups, make_spec, scored


def environment(nats_url: str, pools_file: Path, **more: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("MARLAAS_")}
    return own | {"MARLAAS_NATS_URL": nats_url, "MARLAAS_POOLS_FILE": str(pools_file), "MARLAAS_TRAINER_POOL": "tiny", **more}


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


async def batch(bus: Bus) -> TrainBatch:
    (group,) = make_groups(1, groups=1)
    message = TrajectoriesScored(group=group_context("a", group), members=[scored(t) for t in group.trajectories])
    sequence = await bus.publish(Outgoing(streams.scored("a", "0-0"), message, "a:0-0"))
    members = [BatchMember(member=t.member, sequence=sequence, reward=t.reward) for t in group.trajectories]
    named = [BatchGroup(group=0, version=0, members=members)]
    return TrainBatch(tenant="acme", task="a", pool="tiny", version=0, spec=make_spec(), checkpoint=None, groups=named)


@pytest.mark.timeout(180)
async def test_process_becomes_ready_takes_a_step_and_ends_cleanly(bus: Bus, nats_url: str, model_folder: Path, tmp_path: Path) -> None:
    pools_file = tmp_path / "pools.toml"
    pools_file.write_text(f'[tiny]\nmodel = "{model_folder}"\n')
    port = servers.free_port()
    settings = environment(nats_url, pools_file, MARLAAS_HTTP_PORT=str(port), MARLAAS_TRAINER_CORES=str(min(os.sched_getaffinity(0))))
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", "trainer_svc"], env=settings, stdout=log, stderr=log)
    try:
        await eventually(lambda: is_ready(port) or process.poll() is not None, timeout_s=120)
        assert process.poll() is None, (tmp_path / "log").read_text()
        work = await batch(bus)
        await bus.publish(Outgoing(streams.batch("tiny", "a"), work, "a:v0:batch"))
        async for delivery in bus.follow(streams.WEIGHTS, "weight-updated.tiny.a"):
            assert delivery.read(WeightUpdated).version == 1
            break
        (report,) = await bus.all_values(streams.REPLICAS_BUCKET, ReplicaReport)
        assert (report.service, report.pool) == ("trainer", "tiny")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0, (tmp_path / "log").read_text()
        assert await bus.all_values(streams.REPLICAS_BUCKET, ReplicaReport) == []
    finally:
        process.kill()
        process.wait()


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
    bus: Bus, nats_url: str, model_folder: Path, tmp_path: Path, more: dict[str, str], line: str, status: int
) -> None:
    pools_file = tmp_path / "pools.toml"
    pools_file.write_text(f'[tiny]\nmodel = "{model_folder}"\n')
    done = subprocess.run(
        [sys.executable, "-m", "trainer_svc"], env=environment(nats_url, pools_file, **more), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == status
    assert line in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
