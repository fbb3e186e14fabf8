"""What one job, message or task's rows do to those of others: nothing. Against real NATS and PostgreSQL."""

import pytest
from pydantic import ValidationError
from sqlalchemy import text

from common import streams
from common.bus import MAX_PAYLOAD_BYTES, Bus, Delivery, Outgoing
from common.errors import Reject
from common.messages import MAX_SENTENCE_CHARS, ControlTask, ResendLetter, SubmitTask
from scheduler_svc.decisions.scheduling_policy import SchedulingPolicy
from scheduler_svc.decisions.task_end import MIN_FAILURES_TO_FAIL
from scheduler_svc.handlers import scores
from scheduler_svc.handlers.jobs import Offer, take_job
from scheduler_svc.store.queries import evaluations, groups
from scheduler_svc.store.states import VoidReason
from scheduler_svc.store.transaction import OutboxMessage, Transaction
from tests.conftest import eventually
from tests.scheduler.stages import Stages, World, running_world, scored, spec, submission


async def control(world: World, verb: str, tenant: str, reason: str = "") -> None:
    job = ControlTask(task="a", tenant=tenant, reason=reason)
    await world.bus.publish(Outgoing(streams.control(verb, tenant), job, f"{verb}:{tenant}"))  # type: ignore[arg-type]


async def test_cancel_of_another_tenants_task_deletes_nothing_of_it(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: True)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a")
        await eventually(lambda: len(stages.opened) == 4)
        turn = Outgoing(streams.turn("nobody-serves-this", "a", "0-0"), scored(stages.opened[0], 0, reward=1.0).message, "turn")
        await bus.publish(turn)
        await control(world, "cancel", "mallory")
        await control(world, "pause", "acme")  # jobs are taken one after the other
        await world.event("a", "paused")
        assert await bus.streams.subjects(streams.TURNS) == {turn.subject: 1}
        await control(world, "cancel", "acme", reason="\n" * 100_000)

        async def swept() -> bool:
            return await bus.streams.subjects(streams.TURNS) == {}

        await eventually(swept)
        [(reason,)] = await world.rows("SELECT reason FROM tasks")
        assert len(reason) == MAX_SENTENCE_CHARS


async def test_what_the_bus_cannot_take_fails_what_asks_for_it_and_stops_nothing(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        large = OutboxMessage("events.acme.a", SubmitTask(task="a", tenant="acme", spec={"x": "x" * MAX_PAYLOAD_BYTES}), "")
        with pytest.raises(Reject, match=r"has 8389\d+ bytes; the bus takes 8388608"):
            async with world.database.transaction() as tx:
                tx.post([large])
        body = "convert_to(repeat('x', :size), 'UTF8')"
        rows = text(f"INSERT INTO outbox (subject, message_id, headers, body) VALUES (:subject, 'x', '{{}}', {body})")
        async with world.database.transaction() as tx:  # as an earlier version may have left them
            await tx.connection.execute(rows, {"subject": "events.acme.a", "size": MAX_PAYLOAD_BYTES})
            await tx.connection.execute(rows, {"subject": "events.acme a", "size": 1})
        await world.submit("a")
        await world.event("a", "finished")
        assert await world.rows("SELECT count(*) FROM outbox WHERE message_id = 'x'") == [(0,)]


async def test_messages_on_subjects_that_are_too_short_are_put_aside(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        for subject in ("failed.test", "weight-updated.test", "jobs.test"):
            await bus.publish_raw(subject, b"hello", subject, {})
        await world.submit("a")
        await world.event("a", "finished")

        async def buried() -> bool:
            return await bus.streams.subjects(streams.FAILED) == {"failed.test": 1, "failed.settle.none": 2, "failed.jobs.none": 1}

        await eventually(buried)


async def test_repeated_submission_is_not_judged_by_what_is_offered_now(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.submit("a")
        await world.event("a", "finished")
        offer = Offer({}, {"other"})
        job = submission("a", spec())
        async with world.database.transaction() as tx:
            await take_job(tx, Delivery(job.subject, {}, job.message.encode(), 9, 1), offer, SchedulingPolicy.ASYNCHRONOUS)
        assert await world.rows("SELECT count(*) FROM events WHERE event = 'rejected'") == [(0,)]


def test_letter_that_no_stream_can_have_is_no_wish() -> None:
    with pytest.raises(ValidationError):
        ResendLetter(tenant="acme", letter=2**64)


async def test_one_task_that_cannot_be_looked_at_keeps_nothing_from_the_others(bus: Bus, database_url: str) -> None:
    changed: list[str] = []

    async def change(tx: Transaction, task: str) -> None:
        if task == "a":
            raise OverflowError("a fault")
        await tx.connection.execute(text("SELECT 1"))
        changed.append(task)

    async with running_world(bus, database_url, Stages()) as world:
        await world.scheduler._each({"a", "b", "c"}, change)
    assert changed == ["b", "c"]


async def test_any_number_of_groups_can_be_ended(bus: Bus, database_url: str) -> None:
    many = [("a", number) for number in range(40_000)]
    async with running_world(bus, database_url, Stages()) as world, world.database.transaction() as tx:
        assert await evaluations.abandon_groups(tx.connection, many, "over") == []
        assert await evaluations.complete(tx.connection, many) == []
        assert await groups.void_groups(tx.connection, many, VoidReason.CANCELLED) == []


async def test_failures_with_successes_between_them_are_not_in_a_row(bus: Bus, database_url: str) -> None:
    """However many are settled at once."""
    stages = Stages(withheld=lambda group, member: True)
    size = 2 * MIN_FAILURES_TO_FAIL
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a", spec(algorithm={"group_size": 2, "groups_per_step": MIN_FAILURES_TO_FAIL, "max_staleness": 1}))
        await eventually(lambda: len(stages.opened) == size)
        deliveries: list[Delivery] = []
        for group in sorted(stages.opened, key=lambda group: group.group):
            for member in range(2):
                out = scored(group, member, reward=float(member), failure="flaky" if group.group % 2 and member else None)
                deliveries.append(Delivery(out.subject, out.headers, b"", len(deliveries) + 1, 1))
        async with world.database.transaction() as tx:
            await scores.trajectories_scored(tx, deliveries, SchedulingPolicy.ASYNCHRONOUS)
        assert await world.rows("SELECT state, failures_in_a_row, voided FROM tasks") == [("running", 0, MIN_FAILURES_TO_FAIL)]


async def test_who_comes_back_from_a_pause_has_no_credit(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: True)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a")
        await world.event("a", "accepted")
        await control(world, "pause", "acme")
        await world.event("a", "paused")
        async with world.database.transaction() as tx:
            await tx.connection.execute(text("INSERT INTO tenants (id, virtual_time) VALUES ('other', 1e6)"))
        await control(world, "resume", "acme")
        await world.event("a", "resumed")
        [(time,)] = await world.rows("SELECT virtual_time FROM tenants WHERE id = 'acme'")
        assert time >= 1e6
