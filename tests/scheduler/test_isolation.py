"""Isolation: no job, message, row or backlog affects other tasks. Against real NATS and PostgreSQL."""

import pytest
from pydantic import ValidationError
from sqlalchemy import text

from common import streams
from common.bus import MAX_PAYLOAD_BYTES, Bus, Delivery, Outgoing
from common.errors import Reject
from common.messages import MAX_SENTENCE_CHARS, ResendLetter, SubmitTask
from scheduler_svc.base.scheduling_policy import SchedulingPolicy
from scheduler_svc.base.states import VoidReason
from scheduler_svc.base.transaction import OutboxMessage, Transaction
from scheduler_svc.training.decisions.endings import MIN_FAILURES_TO_FAIL
from scheduler_svc.training.queries import evaluations, groups
from scheduler_svc.training.results import scores
from scheduler_svc.training.submission import Catalog
from scheduler_svc.verbs.jobs import take_job
from tests.support.scheduler.stages import Stages, running_world, scored, spec, submission, updated
from tests.support.waiting import eventually, eventually_equals


async def test_cancel_of_another_tenants_task_deletes_nothing_of_it(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: True)
    async with running_world(bus, database_url, stages) as world:
        await world.begin("a", opened=4)
        turn = Outgoing(streams.turn("unserved", "a", "0-0"), scored(stages.opened[0], 0, reward=1.0).message, "turn")
        await bus.publish(turn)
        await world.control("cancel", "a", "mallory")
        await world.control("pause", "a")  # jobs are handled in order
        await world.event("a", "paused")
        assert await bus.streams.subjects(streams.TURNS) == {turn.subject: 1}
        await world.control("cancel", "a", reason="\n" * 100_000)
        await eventually_equals(lambda: bus.streams.subjects(streams.TURNS), {})
        [(reason,)] = await world.rows("SELECT reason FROM tasks")
        assert len(reason) == MAX_SENTENCE_CHARS


async def test_message_too_large_for_the_bus_fails_its_transaction_only(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        large = OutboxMessage("events.acme.a", SubmitTask(task="a", tenant="acme", spec={"x": "x" * MAX_PAYLOAD_BYTES}), "")
        with pytest.raises(Reject, match=r"has 8389\d+ bytes; the bus takes 8388608"):
            async with world.database.transaction() as tx:
                tx.post([large])
        body = "convert_to(repeat('x', :size), 'UTF8')"
        rows = text(f"INSERT INTO outbox (subject, message_id, headers, body) VALUES (:subject, 'x', '{{}}', {body})")
        async with world.database.transaction() as tx:  # rows that an earlier version may have left
            await tx.connection.execute(rows, {"subject": "events.acme.a", "size": MAX_PAYLOAD_BYTES})
            await tx.connection.execute(rows, {"subject": "events.acme a", "size": 1})
        await world.run("a")
        assert await world.rows("SELECT count(*) FROM outbox WHERE message_id = 'x'") == [(0,)]


async def test_messages_on_too_short_subjects_become_dead_letters(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        for subject in ("failed.test", "weight-updated.test", "jobs.test"):
            await bus.publish_raw(subject, b"hello", subject, {})
        await world.run("a")
        letters = {"failed.test": 1, "failed.settle.none": 2, "failed.jobs.none": 1}
        await eventually_equals(lambda: bus.streams.subjects(streams.FAILED), letters)


async def test_repeated_submission_is_not_validated_against_the_current_offer(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.run("a")
        offer = Catalog({}, {"other"})
        job = submission("a", spec())
        async with world.database.transaction() as tx:
            await take_job(tx, Delivery(job.subject, {}, job.message.encode(), 9, 1), offer, SchedulingPolicy.ASYNCHRONOUS)
        assert await world.rows("SELECT count(*) FROM events WHERE event = 'rejected'") == [(0,)]


def test_resend_of_an_impossible_sequence_is_invalid() -> None:
    with pytest.raises(ValidationError):
        ResendLetter(tenant="acme", letter=2**64)


async def test_error_with_one_task_does_not_affect_the_others(bus: Bus, database_url: str) -> None:
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
        assert await groups.end_groups(tx.connection, many, "over") == []
        assert await evaluations.complete(tx.connection, many) == []
        assert await groups.void_groups(tx.connection, many, VoidReason.CANCELLED) == ([], [])


async def test_failures_with_successes_between_them_are_not_in_a_row(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: True)
    size = 2 * MIN_FAILURES_TO_FAIL
    async with running_world(bus, database_url, stages) as world:
        await world.begin("a", spec(algorithm={"group_size": 2, "groups_per_step": MIN_FAILURES_TO_FAIL, "max_staleness": 1}), opened=size)
        deliveries: list[Delivery] = []
        for group in sorted(stages.opened, key=lambda group: group.group):
            for member in range(2):
                out = scored(group, member, reward=float(member), failure="flaky" if group.group % 2 and member else None)
                deliveries.append(Delivery(out.subject, out.headers, b"", len(deliveries) + 1, 1))
        async with world.database.transaction() as tx:
            await scores.trajectories_scored(tx, deliveries, SchedulingPolicy.ASYNCHRONOUS)
        assert await world.rows("SELECT state, failures_in_a_row, voided FROM tasks") == [("running", 0, MIN_FAILURES_TO_FAIL)]


async def test_tenant_that_resumes_from_a_pause_has_no_credit(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: True)
    async with running_world(bus, database_url, stages) as world:
        await world.run("a", until="accepted")
        await world.control("pause", "a", until="paused")
        await world.execute("INSERT INTO tenants (id, virtual_time) VALUES ('other', 1e6)")
        await world.control("resume", "a", until="resumed")
        [(time,)] = await world.rows("SELECT virtual_time FROM tenants WHERE id = 'acme'")
        assert time >= 1e6


async def test_late_messages_of_a_cancelled_task_do_not_affect_its_namesake(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: group.task == "sums-1" and group.group >= 2)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("sums-1", spec("sums", steps=2))
        await eventually(lambda: len(stages.batches) == 1 and len(stages.opened) >= 4)
        old, batch = list(stages.opened), stages.batches[0]
        await world.control("cancel", "sums-1", until="cancelled")
        before = await world.rows("SELECT version, admitted, voided FROM tasks WHERE id = 'sums-1'")
        await world.submit("sums-2", spec("sums", steps=2))
        for group in old:
            for member in range(group.size):
                late = scored(group, member, reward=99.0)
                await bus.publish(Outgoing(late.subject, late.message, f"late:{group.group}:{member}", late.headers))
        weights = updated(batch.model_copy(update={"version": 1}))
        await bus.publish(Outgoing(weights.subject, weights.message, "late weights"))
        repeated = submission("sums-1", spec("sums", steps=2))
        await bus.publish(Outgoing(repeated.subject, repeated.message, "repeated"))
        await world.event("sums-2", "finished")

        assert await world.rows("SELECT version, admitted, voided FROM tasks WHERE id = 'sums-1'") == before
        assert await world.rows("SELECT state FROM tasks WHERE id = 'sums-1'") == [("cancelled",)]
        assert await world.rows("SELECT max(reward) FROM trajectories") == [(1.0,)]
        assert await world.rows("SELECT count(*) FROM steps WHERE task = 'sums-2' AND state = 'trained'") == [(2,)]
        names = await world.rows("SELECT adapter #>> '{blob,name}' FROM tasks WHERE id = 'sums-2'")
        assert names == [("sums-2.v2.adapter-0",)]


class Counting(Stages):
    """Records the maximum number of members in flight."""

    answered = 0
    max_in_flight = 0

    async def open(self, delivery: Delivery):  # type: ignore[no-untyped-def]  # an async generator, as its base's
        async for out in super().open(delivery):
            self.max_in_flight = max(self.max_in_flight, len(self.opened) * 2 - self.answered)
            self.answered += 1
            yield out


async def test_forty_times_more_tasks_than_capacity_never_exceed_it(bus: Bus, database_url: str) -> None:
    room = 6  # capacity in flight for four sequences
    stages = Counting(reward=lambda group, member: float(member))
    tasks = 40
    async with running_world(bus, database_url, stages, sequences=4) as world:
        for number in range(tasks):
            await world.submit(f"t{number}", spec(tenant=f"tenant{number % 5}", steps=1, algorithm={"group_size": 2, "groups_per_step": 1}))

        async def all_ended() -> bool:
            waiting = sum((await bus.streams.subjects(streams.PROMPTS, "prompts.open.>")).values())
            assert waiting <= room  # a request may be acknowledged after its answer
            return await world.rows("SELECT count(*) FROM tasks WHERE state = 'finished'") == [(tasks,)]

        await eventually(all_ended)
    assert 0 < stages.max_in_flight <= room
