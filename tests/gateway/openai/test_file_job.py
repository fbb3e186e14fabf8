"""A job on an uploaded file with a real environment replica: the stock client's job is accepted, and its groups are graded."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common import streams
from common.bus import Bus, Delivery, Outgoing, Slots
from common.messages import FILE_FAMILY, ReplicaReport, SampledTurn, SampleTurns, TurnsSampled
from tests.gateway.openai.clients import Opened
from tests.gateway.openai.fine_tuning import ended, strictly
from tests.support.env.replicas import replica
from tests.support.gateway.files import HELD_OUT, NOTHING, by, put
from tests.support.graders import CHECK, MULTI
from tests.support.keyed import WITH_INSTALLED, Keyed, keyed_server
from tests.support.scheduler.stages import World
from tests.support.waiting import at_work, eventually

PYTHON = {"type": "python", "name": "p", "source": "def grade(sample, item):\n    return float(sample['output_text'] == item['answer'])\n"}


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Keyed]:
    """The replica has its key; the test, which is every other service, has none."""
    async with keyed_server(tmp_path / "keyed", open_to_tests=True, deployment=WITH_INSTALLED) as server:
        yield server


@pytest.fixture
def nats_url(keyed: Keyed) -> str:
    return keyed.url


async def sampled(delivery: Delivery) -> AsyncIterator[Outgoing]:
    """Replies of members with an even number are right: the number that the prompt asks for."""
    message = delivery.read(SampleTurns)
    for request in message.members:
        group, member, number = message.group, request.member, request.turn
        asked = request.messages[-1].content.removeprefix("Say ").removesuffix(".")
        transcript = request.transcript.with_context([1] * 20).with_sampled([2] * 100, [-0.5] * 100)
        reply = asked if member % 2 == 0 else "none"
        turn = SampledTurn(member=member, turn=number, transcript=transcript, reply=reply, finish="stop", state=request.state)
        subject = streams.turn(group.family, group.task, group.trajectory(member))
        yield Outgoing(subject, TurnsSampled(group=group, members=[turn]), f"turn:{group.task}:{group.group}:{member}.{number}")


@pytest.mark.slow
@pytest.mark.parametrize("grader", [CHECK, PYTHON, MULTI], ids=["string_check", "python", "multi"])
async def test_groups_of_a_job_on_a_file_are_graded(
    world: World, bus: Bus, keyed: Keyed, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grader: dict[str, str]
) -> None:
    monkeypatch.setenv("MARLAAS_DATA_DIR", str(tmp_path / "data"))

    async def serves() -> bool:
        reports = await bus.kv.values(streams.REPLICAS_BUCKET, ReplicaReport)
        return any(FILE_FAMILY in one.families for one in reports)

    with replica(keyed, tmp_path / "log", families=FILE_FAMILY, workers="1"):
        await eventually(serves, 60)
        async with opened(NOTHING) as client, at_work(bus.consume(streams.rollout_samples("tiny"), sampled, Slots(16))):
            train, held_out = await put(client), await put(client, HELD_OUT)
            job = await client.fine_tuning.jobs.create(
                model="tiny",
                training_file=train.id,
                validation_file=held_out.id,
                method=by(grader, batch_size=4),
                extra_body={"marlaas": {"algorithm": {"group_size": 2}}},
            )
            if grader is not MULTI:  # of which the client's type has one grader in place of several
                strictly(job)
            done = await ended(client, job.id)
            assert done.status == "succeeded", done.error
            [result] = done.result_files
            steps = [json.loads(line) for line in (await client.files.content(result)).text.splitlines()]
            assert len(steps) == 3
            for step in steps:
                assert step["reward"] == pytest.approx(0.5, abs=0.15 if grader is MULTI else 1e-6)
            events = [one.data async for one in client.fine_tuning.jobs.list_events(job.id)]
            evaluated = [one for one in events if isinstance(one, dict) and one["event"] == "evaluation"]
            assert {one["version"] for one in evaluated} >= {0, 3}
