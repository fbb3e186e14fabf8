"""Dead letters: recorded, counted, and resent without reviving or repeating anything."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from sqlalchemy import text

from common import streams
from common.bus import MAX_PAYLOAD_BYTES, Bus, Delivery, Outgoing, Slots
from common.errors import Reject
from common.messages import (
    ControlTask,
    DeadLetter,
    OpenGroup,
    ResendLetter,
    SampledTurn,
    SetTenant,
    SubmitTask,
    TaskStatus,
    TokenRecord,
    TrajectoriesScored,
    TurnsSampled,
)
from marlaas.client import Client, ClientError
from scheduler_svc.base.database import Database
from scheduler_svc.training.results.dead_letters import read_resend_request, resend
from tests.support.buses import message_on
from tests.support.scheduler.dead_letters import dead_letter, recorded
from tests.support.scheduler.stages import Stages, running_world, scored, spec, updated
from tests.support.waiting import at_work, eventually, eventually_equals


def turn_of(task: str) -> Outgoing:
    """A message of the stage `turn`, whose body matters not."""
    return Outgoing(streams.turn("toy", task, "0-0"), ControlTask(task=task, tenant="acme"), f"turn:{task}")


async def test_dead_letters_are_counted_in_the_status_and_listed_with_their_reason(bus: Bus, nats_url: str, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: True)
    async with running_world(bus, database_url, stages) as world, Client.connect(nats_url) as client:
        await world.submit("a")
        await world.submit("b", spec(tenant="other"))
        await eventually(lambda: {group.task for group in stages.opened} == {"a", "b"})
        number = await dead_letter(bus, "turn", "a", turn_of("a"), body=b"garbage")

        async def counted() -> bool:
            statuses = {status.task: status.dead_letters for status in await client.tasks()}
            return statuses == {"a": 1, "b": 0}

        await eventually(counted)
        [failure] = await client.failures("a")
        assert (failure.letter, failure.task, failure.stage, failure.reason, failure.attempts) == (number, "a", "turn", "disk full", 5)
        assert await client.failures("b") == []
        assert [one.letter for one in await client.failures()] == [number]
        assert await world.rows("SELECT task, dead_letters FROM task_status ORDER BY task") == [("a", 1), ("b", 0)]


async def test_resent_job_is_handled_once(bus: Bus, nats_url: str, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world, Client.connect(nats_url) as client:
        job = Outgoing(streams.job("submit", "acme"), SubmitTask(task="a", tenant="acme", spec=spec()), "submit:a")
        number = await dead_letter(bus, "jobs", "none", job)
        await recorded(world, 1)
        for _ in range(2):
            await client.resend(number)
        await world.event("a", "finished")
        assert await world.rows("SELECT count(*) FROM tasks") == [(1,)]
        assert await world.rows("SELECT count(*) FROM events WHERE task = 'a' AND event = 'accepted'") == [(1,)]


async def test_resend_request_that_precedes_its_letter_is_granted(bus: Bus, database: Database) -> None:
    job = Outgoing(streams.job("submit", "acme"), SubmitTask(task="a", tenant="acme", spec=spec()), "submit:a")
    number = await dead_letter(bus, "jobs", "none", job)
    request = await read_resend_request(
        bus, Delivery(streams.job("resend", "acme"), {}, ResendLetter(tenant="acme", letter=number).encode(), 7, 1)
    )
    for _ in range(2):
        async with database.transaction() as tx:
            await resend(tx, request)
    async with database.transaction() as tx:
        rows = (await tx.connection.execute(text("SELECT sequence, resent_by FROM dead_letters"))).all()
        sent = (await tx.connection.execute(text("SELECT count(*) FROM outbox WHERE message_id LIKE 'resent:%'"))).scalar_one()
    assert ([tuple(row) for row in rows], sent) == ([(number, 7)], 1)


async def test_resent_score_counts_once(bus: Bus, nats_url: str, database_url: str) -> None:
    """The scheduler reads headers only: the letter has no body, and the stored message's is resent."""
    stages = Stages(withheld=lambda group, member: (group.group, member) == (0, 1))
    async with running_world(bus, database_url, stages) as world, Client.connect(nats_url) as client:
        await world.begin("a", spec(steps=1), opened=2)
        lost = scored(stages.opened[0], 1, reward=5.0)
        stored = Outgoing(lost.subject, lost.message, "lost")  # fails: it has no settlement
        sequence = await bus.publish(stored)
        await recorded(world, 1)  # by the scheduler itself
        number = await dead_letter(bus, "settle", "a", lost, sequence=sequence, body=b"")
        await recorded(world, 2)
        assert await world.rows("SELECT state FROM tasks") == [("running",)]
        await client.resend(number)
        await world.event("a", "finished")
        [batch] = stages.batches
        assert sorted(member.reward for group in batch.groups for member in group.members) == [0.0, 0.0, 1.0, 5.0]
        resent = next(member.sequence for group in batch.groups for member in group.members if member.reward == 5.0)
        assert resent > sequence
        with pytest.raises(ClientError, match="task a is finished, and a task that has ended is not resumed"):
            await client.resend(number)


async def test_resent_score_carries_its_body(bus: Bus, nats_url: str, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: True)
    async with running_world(bus, database_url, stages) as world, Client.connect(nats_url) as client:
        await world.begin("a", opened=4)
        out = scored(stages.opened[0], 1, reward=5.0)
        sequence = await bus.publish(out)
        number = await dead_letter(bus, "settle", "a", out, sequence=sequence, body=b"")
        await recorded(world, 1)
        await client.resend(number)
        await eventually_equals(lambda: bus.streams.subjects(streams.SCORED), {out.subject: 2})
        resent = await bus.streams.last(streams.SCORED, out.subject)
        assert resent is not None
        assert resent.read(TrajectoriesScored) == out.message
        assert resent.headers[streams.SETTLEMENT_HEADER] == out.headers[streams.SETTLEMENT_HEADER]


async def test_task_that_has_ended_is_not_revived(bus: Bus, nats_url: str, database_url: str) -> None:
    stages = Stages(trains=False)
    async with running_world(bus, database_url, stages) as world, Client.connect(nats_url) as client:
        await world.begin("a", batches=1)
        number = await dead_letter(bus, "train", "a", Outgoing(streams.batch("tiny", "a"), stages.batches[0], "batch"))
        assert (await world.event("a", "failed"))["reason"] == "disk full"
        with pytest.raises(ClientError, match="task a is failed, and a task that has ended is not resumed; submit a new one"):
            await client.resend(number)
        assert await bus.streams.subjects(streams.BATCHES) == {}
        assert await world.rows("SELECT state, dead_letters FROM task_status") == [("failed", 1)]
        assert (await client.status("a")).dead_letters == 1


async def test_message_of_a_refilled_group_is_not_resent(bus: Bus, nats_url: str, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: True)
    async with running_world(bus, database_url, stages) as world, Client.connect(nats_url) as client:
        await world.begin("a", opened=4)
        first = stages.opened[0]
        number = await dead_letter(bus, "open", "a", Outgoing(streams.open_group("toy", "a", first.group), OpenGroup(group=first), "open"))
        await eventually(lambda: len(stages.opened) == 5)
        with pytest.raises(ClientError, match=f"group {first.group} is complete, or was abandoned and refilled"):
            await client.resend(number)
        await asyncio.sleep(0.3)
        assert len(stages.opened) == 5


@pytest.mark.parametrize("state", ["ready", "batched"])
async def test_dead_letter_of_a_complete_group_voids_nothing(bus: Bus, nats_url: str, database_url: str, state: str) -> None:
    """A turn that one replica handled may fail at another that it is redelivered to."""
    stages = Stages(trains=False, withheld=lambda group, member: state == "ready" and group.group > 0)
    async with running_world(bus, database_url, stages) as world, Client.connect(nats_url) as client:
        await world.begin("a", spec(steps=1), opened=2)
        await world.rows_become("SELECT state FROM groups WHERE number = 0", [(state,)])
        first = next(group for group in stages.opened if group.group == 0)
        played = SampledTurn(member=0, turn=0, transcript=TokenRecord(), reply="", finish="stop", state=b"")
        turn = TurnsSampled(group=first, members=[played])
        number = await dead_letter(bus, "turn", "a", Outgoing(streams.turn("toy", "a", first.trajectory(0)), turn, "turn"))
        await recorded(world, 1)
        assert await world.rows("SELECT state, void_reason FROM groups WHERE number = 0") == [(state, None)]
        assert await world.rows("SELECT count(*) FROM groups WHERE state = 'void'") == [(0,)]
        with pytest.raises(ClientError, match="group 0 is complete, or was abandoned"):
            await client.resend(number)
        await world.score(stages.opened)
        await eventually(lambda: len(stages.batches) == 1)
        await bus.publish(updated(stages.batches[0]))
        await world.event("a", "finished")
        assert await world.rows("SELECT number, state FROM groups ORDER BY number") == [(0, "trained"), (1, "trained")]


async def test_resend_of_another_tenants_message_is_rejected(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: True)
    async with running_world(bus, database_url, stages) as world:
        await world.begin("a", opened=4)
        own = Outgoing(streams.job("cancel", "acme"), ControlTask(task="a", tenant="acme"), "cancel")
        letters = [
            await dead_letter(bus, "turn", "a", turn_of("a"), body=b"garbage"),
            await dead_letter(bus, "jobs", "none", own),
        ]
        await recorded(world, 2)
        for letter in letters:
            request = ResendLetter(tenant="mallory", letter=letter)
            await bus.publish(Outgoing(streams.job("resend", "mallory"), request, f"resend:{letter}"))
        absent = letters[-1] + 7
        await bus.publish(Outgoing(streams.job("resend", "mallory"), ResendLetter(tenant="mallory", letter=absent), "resend:absent"))
        await eventually_equals(lambda: bus.streams.subjects(streams.EVENTS, "events.mallory.>"), {"events.mallory.none": 3})
        answers = [(data["letter"], str(data["reasons"])) for data in await world.events("none", "rejected")]
        assert answers == [(n, f"[\"letter: there is no dead letter {n} of tenant 'mallory'\"]") for n in [*letters, absent]]
        assert await world.rows("SELECT count(*) FROM dead_letters WHERE resent_at IS NOT NULL") == [(0,)]
        assert await world.rows("SELECT state FROM tasks") == [("running",)]


async def test_letter_with_a_subject_that_its_stage_does_not_read_is_not_resent(bus: Bus, database_url: str) -> None:
    """As a stolen service key could write it, so that the scheduler publishes what that key may not."""
    stages = Stages(withheld=lambda group, member: True, trains=False)
    async with running_world(bus, database_url, stages) as world:
        await world.begin("a", opened=4)
        subjects = ("weight-updated.tiny.a", "jobs.set-tenant.acme", "trajectories.turn.toy.b.0-0", "$KV.tasks.a", "events.globex.x")
        numbers = [await dead_letter(bus, "turn", "a", replace(turn_of("a"), subject=subject, message_id=subject)) for subject in subjects]
        await eventually(lambda: bus.streams.last(streams.FAILED, "failed.settle.a"))
        before = {stream.name: await bus.streams.backlog(stream) for stream in (streams.WEIGHTS, streams.TURNS, streams.JOBS)}
        for number in numbers:
            await bus.publish(Outgoing(streams.job("resend", "acme"), ResendLetter(tenant="acme", letter=number), f"resend:{number}"))
        await eventually_equals(lambda: bus.streams.subjects(streams.EVENTS, "events.acme.none"), {"events.acme.none": len(numbers)})
        assert {data["letter"] for data in await world.events("none", "rejected")} == set(numbers)
        await eventually_equals(lambda: bus.streams.backlog(streams.JOBS), 0)
        assert {stream.name: await bus.streams.backlog(stream) for stream in (streams.WEIGHTS, streams.TURNS, streams.JOBS)} == before
        assert await world.rows("SELECT count(*) FROM dead_letters") == [(0,)]
        assert await bus.streams.subjects(streams.EVENTS, "events.globex.>") == {}


async def test_job_that_a_member_may_not_send_is_not_resent_either(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.run("a")
        wish = SetTenant(tenant="acme", request="r", weight=99.0)
        number = await dead_letter(bus, "jobs", "none", Outgoing("jobs.set-tenant.acme", wish, "set-tenant"))
        await bus.publish(Outgoing(streams.job("resend", "acme"), ResendLetter(tenant="acme", letter=number), "resend"))
        assert "a job 'set-tenant' is not sent again by `resend`" in str(await world.event("none", "rejected"))
        assert await world.rows("SELECT weight FROM tenants") == [(1.0,)]


async def test_resend_of_a_missing_letter_names_it(bus: Bus, nats_url: str, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()), Client.connect(nats_url) as client:
        with pytest.raises(ClientError, match="no dead letter 7"):
            await client.resend(7)
        await bus.publish(Outgoing(streams.failed("jobs", "none"), ControlTask(task="a", tenant="acme"), "malformed letter"))
        with pytest.raises(ClientError, match="no dead letter 1"):
            await client.resend(1)


async def test_reason_that_quotes_a_null_character_is_kept(bus: Bus, database_url: str) -> None:
    """PostgreSQL rejects null characters; an environment's output may have them."""
    stages = Stages(failure=lambda group, member: "stderr: \0\0" if group.group == 0 else None)
    async with running_world(bus, database_url, stages) as world:
        await world.run("a")
        assert await world.rows("SELECT detail FROM groups WHERE state = 'void'") == [("stderr: " + 2 * "\N{REPLACEMENT CHARACTER}",)]
        status = await bus.kv.get(streams.TASKS_BUCKET, "a", TaskStatus)
        assert status is not None
        assert status.dead_letters == 0


async def test_malformed_letter_becomes_one_more_dead_letter_only(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await bus.publish(Outgoing(streams.failed("train", "a"), ControlTask(task="a", tenant="acme"), "malformed letter"))
        once = {"failed.train.a": 1, "failed.settle.a": 1}
        await eventually_equals(lambda: bus.streams.subjects(streams.FAILED), once)
        await world.run("a")
        assert await bus.streams.subjects(streams.FAILED) == once


async def test_dead_letter_of_a_large_message_has_no_body(bus: Bus) -> None:
    """The letter with its body would be too large too."""

    async def handler(delivery: Delivery) -> AsyncIterator[Outgoing]:
        raise Reject("no use")
        yield

    async with at_work(bus.consume(streams.scheduler_jobs("acme"), handler, Slots(1))) as runner:
        await bus.publish_raw("jobs.submit.acme", b"x" * (MAX_PAYLOAD_BYTES - 1000), "large", {})
        letter = (await message_on(bus, streams.FAILED, "failed.jobs.none")).read(DeadLetter)
        assert (letter.body, letter.reason) == (b"", "no use")
        assert not runner.done()
