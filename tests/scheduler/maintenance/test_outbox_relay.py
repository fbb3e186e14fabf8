"""The outbox relay where NATS answers late."""

import asyncio
from collections.abc import Mapping

import pytest
import structlog

from common import streams
from common.bus import Bus
from common.messages import DeadLetter, TaskStatus
from scheduler_svc.base.database import Database
from scheduler_svc.base.transaction import OutboxMessage
from scheduler_svc.upkeep import outbox
from scheduler_svc.upkeep.outbox import OutboxRelay, OutboxRow, superseded_rows
from tests.support.waiting import at_work, eventually


def test_values_stored_before_an_older_one_are_found() -> None:
    a, b, events = streams.value_subject("tasks", "a"), streams.value_subject("tasks", "b"), "events.acme.a"
    rows = [OutboxRow(number, subject, "", {}, b"") for number, subject in enumerate((a, events, b, a, events, b, a))]
    assert superseded_rows(rows, [1, 9, 2, 3, 8, 4, 5]) == []
    assert superseded_rows(rows, [1, 8, 6, 7, 9, 4, 5]) == [rows[6], rows[5]]
    assert superseded_rows(rows, [1, 8, 2, 3, 9, 0, 0]) == []  # refused ones stay refused


async def test_status_is_the_latest_when_an_earlier_one_is_stored_late(
    bus: Bus, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, is_late, later_is_stored = bus.publish_raw, True, asyncio.Event()

    async def first_is_late(subject: str, body: bytes, message_id: str, headers: Mapping[str, str]) -> int:
        nonlocal is_late
        if subject == streams.value_subject(streams.TASKS_BUCKET, "a"):
            if is_late:
                is_late = False
                await later_is_stored.wait()
            else:
                place = await publish(subject, body, message_id, headers)
                later_is_stored.set()
                return place
        return await publish(subject, body, message_id, headers)

    monkeypatch.setattr(bus, "publish_raw", first_is_late)
    for state in ("running", "finished"):
        async with database.transaction() as tx:
            status = TaskStatus(
                tenant="acme", task="a", name="a", pool="tiny", state=state, version=0, steps=1, submitted_s=0.0, updated_s=0.0
            )
            tx.post_value(streams.TASKS_BUCKET, "a", status)

    async def all_out() -> bool:
        async with database.transaction() as tx:
            return not await outbox.oldest_rows(tx.connection, 1)

    async with at_work(OutboxRelay(database, bus).run()):
        await eventually(all_out)
        stored = await bus.kv.get(streams.TASKS_BUCKET, "a", TaskStatus)
        assert stored is not None
        assert stored.state == "finished"


async def test_rows_wait_while_their_stream_is_full_and_all_are_stored_once_there_is_room(bus: Bus, database: Database) -> None:
    await bus.declare(streams_bytes=1)  # PROMPTS takes four of these
    letter = DeadLetter(stage="x", subject="x", reason="", attempts=1, headers={}, body=b"x" * 7 * 1024 * 1024, sequence=1)
    for number in range(6):
        async with database.transaction() as tx:
            tx.post([OutboxMessage(streams.sample("tiny", "a", f"0-{number}"), letter, f"sample:{number}")])

    async def stored() -> int:
        return (await bus.blobs_context().stream_info(streams.PROMPTS.name)).state.messages

    async def waiting() -> int:
        async with database.transaction() as tx:
            return len(await outbox.oldest_rows(tx.connection, 10))

    async def is_full() -> bool:
        return await stored() == 4

    async def is_out() -> bool:
        return not await waiting()

    with structlog.testing.capture_logs() as logs:
        async with at_work(OutboxRelay(database, bus).run()):
            await eventually(is_full)
            await eventually(lambda: any(entry["event"] == "relay_interrupted" for entry in logs))
            assert await waiting() == 6
            taken: list[str] = []
            for sequence in (1, 2):
                taken.append((await bus.streams.read(streams.PROMPTS, sequence)).subject)
                await bus.blobs_context().delete_msg(streams.PROMPTS.name, sequence)
            await eventually(is_out)
    subjects = [delivery.subject async for delivery in bus.streams.stored(streams.PROMPTS, "prompts.sample.>")]
    assert sorted([*subjects, *taken]) == [streams.sample("tiny", "a", f"0-{number}") for number in range(6)]
    assert any(entry["event"] == "stream_full" for entry in logs)
