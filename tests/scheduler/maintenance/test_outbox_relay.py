"""The outbox relay where NATS answers late."""

import asyncio
from collections.abc import Mapping

import pytest

from common import streams
from common.bus import Bus
from common.messages import TaskStatus
from scheduler_svc.maintenance.outbox_relay import OutboxRelay, superseded_rows
from scheduler_svc.store.database import Database
from scheduler_svc.store.queries import outbox
from scheduler_svc.store.queries.outbox import OutboxRow
from scheduler_svc.store.transaction import OutboxMessage
from tests.conftest import at_work, eventually


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
            tx.post([OutboxMessage(streams.value_subject(streams.TASKS_BUCKET, "a"), status, "", as_json=True)])

    async def all_out() -> bool:
        async with database.transaction() as tx:
            return not await outbox.oldest_rows(tx.connection, 1)

    async with at_work(OutboxRelay(database, bus).run()):
        await eventually(all_out)
        stored = await bus.kv.get(streams.TASKS_BUCKET, "a", TaskStatus)
        assert stored is not None
        assert stored.state == "finished"
