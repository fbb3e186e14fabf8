"""A whole replica as a process: ready, listed, answering, and gone without a trace."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from common import streams
from common.bus import Bus, Outgoing
from common.messages import (
    CheckEnvironment,
    EnvironmentChecked,
    OpenGroup,
    PoolClock,
    ReplicaReport,
    SampledTurn,
    SampleTurns,
    TrajectoriesScored,
    TurnsSampled,
)
from common.spec import EnvironmentSection, Limits
from tests.support.buses import message_on
from tests.support.env.replicas import lives, processes_of, ready, replica
from tests.support.groups import group_context
from tests.support.keyed import Keyed
from tests.support.waiting import eventually, eventually_equals


@pytest.fixture
def nats_url(keyed: Keyed) -> str:
    """Of `bus`, which is every other service."""
    return keyed.url


async def test_replica_serves_and_ends_cleanly(bus: Bus, keyed: Keyed, tmp_path: Path) -> None:
    """Its pool was parked for so long that the group's deadline is over on the wall, and not in the pool's time."""
    await bus.kv.put(streams.CLOCKS_BUCKET, "tiny", PoolClock(parked_s=1000.0))
    with replica(keyed, tmp_path / "log", workers="2") as process:
        report = await ready(bus)
        assert (report.service, report.families[-1]) == ("env", "module")
        assert "reasoning_gym:gcd" in report.environments
        environment = EnvironmentSection(name="reasoning_gym:gcd")
        check = CheckEnvironment(
            tenant="acme", task="t", family="reasoning_gym", environment=environment, seed=1, weight=1.0, by_operator=True
        )
        await bus.publish(Outgoing(streams.check("reasoning_gym", "t"), check, "check:t"))
        answer = await message_on(bus, streams.TURNS, streams.checked("t"))
        assert answer.read(EnvironmentChecked).objection is None
        deadline_s = bus.clock.now_s() - 500
        group = group_context("t", size=4, family="reasoning_gym", environment=environment, seed=1, deadline_s=deadline_s)
        await bus.publish(Outgoing(streams.open_group("reasoning_gym", "t", 0), OpenGroup(group=group), "open:t:0"))
        message = await message_on(bus, streams.PROMPTS, streams.sample("tiny", "t", "0-0"))
        assert len(message.read(SampleTurns).members) == 4
        below = processes_of(process.pid)
        assert len(below) >= 4
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=250) == 0
        await eventually(lambda: not any(map(lives, below)))
        await eventually_equals(lambda: bus.kv.values(streams.REPLICAS_BUCKET, ReplicaReport), [])
    assert await bus.streams.backlog(streams.FAILED) == 0


async def test_workers_do_not_outlive_a_killed_replica(bus: Bus, keyed: Keyed, tmp_path: Path) -> None:
    with replica(keyed, tmp_path / "log", workers="2", families="reasoning_gym") as process:
        assert (await ready(bus)).families == ["reasoning_gym"]
        below = processes_of(process.pid)
        assert len(below) >= 4
        process.kill()
        process.wait()
        await eventually(lambda: not any(map(lives, below)))


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="THE SANDBOX OF HOSTED ENVIRONMENTS IS NOT TESTED: there is no bwrap")
async def test_hosts_in_their_sandboxes_do_not_outlive_a_killed_replica(bus: Bus, keyed: Keyed, tmp_path: Path) -> None:
    table = f'[game]\npython = "{sys.executable}"\nenvironment = "env_svc.builtin.exact_words:ExactWords"\nprocesses = 2\n'
    (tmp_path / "hosts.toml").write_text(table)
    log = tmp_path / "log"
    settings = {"workers": "1", "families": "game", "hosts_file": str(tmp_path / "hosts.toml"), "hosts_sandbox": "required"}
    with replica(keyed, log, **settings) as process:
        assert (await ready(bus)).environments[-1:] == ["game"]
        assert "hosts_confined" in log.read_text()
        below = processes_of(process.pid)
        users = {Path(f"/proc/{one}").stat().st_uid for one in below}
        assert os.geteuid() != 0 or len(users - {0}) == 2, "each host has a user of its own"
        process.kill()
        process.wait()
        await eventually(lambda: not any(map(lives, below)))


async def test_episode_continues_elsewhere_when_its_replica_is_killed_in_mid_turn(bus: Bus, keyed: Keyed, tmp_path: Path) -> None:
    environment = EnvironmentSection.model_validate(
        {"name": "tests.env.tools.toy_tools:Talk", "tools": ["tests.env.tools.toy_tools:Parrot"]}
    )
    group = group_context("t", environment=environment, limits=Limits(max_turns=8), seed=1)
    gate, asked = tmp_path / "gate", streams.sample("tiny", "t", "0-0")

    async def say(turn: int, reply: str) -> None:
        """Answer the request for this turn, as the rollout service does."""

        async def wanted() -> bool:
            message = await bus.streams.last(streams.PROMPTS, asked)
            return message is not None and message.read(SampleTurns).members[0].turn == turn

        await eventually(wanted)
        message = await bus.streams.last(streams.PROMPTS, asked)
        assert message is not None
        request = message.read(SampleTurns).members[0]
        transcript = request.transcript.with_context([1]).with_sampled([2, 3], [-0.5, -0.5])
        sampled = SampledTurn(member=0, turn=turn, transcript=transcript, reply=reply, finish="stop", state=request.state)
        await bus.publish(Outgoing(streams.turn("module", "t", "0-0"), TurnsSampled(group=group, members=[sampled]), f"turn:{turn}"))

    with replica(keyed, tmp_path / "first", workers="1", families="module", allowed="tests.*:*") as first:
        await ready(bus)
        await bus.publish(Outgoing(streams.open_group("module", "t", 0), OpenGroup(group=group), "open:t:0"))
        await say(0, "<parrot>one</parrot>")
        await say(1, f"<parrot>await-file {gate}</parrot>")

        async def playing() -> bool:
            consumer = streams.env_turns("module")
            return (await bus.blobs_context().consumer_info(consumer.stream, consumer.name)).num_ack_pending == 1

        await eventually(playing)
        first.kill()
        first.wait()
    gate.touch()
    with replica(keyed, tmp_path / "second", workers="1", families="module", allowed="tests.*:*"):
        await say(2, "done")
        message = await message_on(bus, streams.SCORED, streams.scored("t", "0-0"))
    (member,) = message.read(TrajectoriesScored).members
    assert (member.reward, member.turns, member.components) == (1.0, 3, {"tool_calls": 2.0, "tool_errors": 0.0, "steps": 1.0})
    assert member.transcript.sampled_T().tolist() == [0, 1, 1] * 3


def test_wrong_setting_is_one_line() -> None:
    environment = {**os.environ, "MARLAAS_ENV_WORKERS": "many"}
    ended = subprocess.run([sys.executable, "-m", "env_svc"], env=environment, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "MARLAAS_ENV_WORKERS" in ended.stderr


async def test_family_that_is_not_installed_ends_the_process(bus: Bus, keyed: Keyed, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with replica(keyed, log, families="reasoning_gim") as process:
        assert process.wait(timeout=250) == 1
    assert "no environment family 'reasoning_gim' is installed here; did you mean 'reasoning_gym'?" in log.read_text()
