"""Numbers of events: from 1 for each tenant and task, without gaps, in the order in which the events become visible."""

import asyncio
from pathlib import Path

from sqlalchemy import text

from common.bus import Bus
from common.messages import Event
from scheduler_svc.base.database import Database
from scheduler_svc.upkeep import outbox
from tests.support.scheduler.finished import settled, stages
from tests.support.scheduler.stages import running_world


async def numbers(database: Database, task: str = "a") -> list[tuple[str, int]]:
    query = text("SELECT tenant, number FROM events WHERE task = :task ORDER BY id")
    async with database.transaction() as tx:
        return [(row.tenant, row.number) for row in (await tx.connection.execute(query, {"task": task})).all()]


async def test_message_and_row_of_an_event_have_one_number(database: Database) -> None:
    async with database.transaction() as tx:
        for tenant, task in (("acme", "b"), ("acme", "a"), ("acme", "b"), ("globex", "b")):
            tx.emit_event(tenant, task, "paused")
    async with database.transaction() as tx:
        tx.emit_event("acme", "b", "resumed")
    async with database.transaction() as tx:
        sent = [Event.decode(row.body) for row in await outbox.oldest_rows(tx.connection, 10)]
    assert [(event.tenant, event.task, event.number) for event in sent] == [
        ("acme", "b", 1),
        ("acme", "a", 1),
        ("acme", "b", 2),
        ("globex", "b", 1),
        ("acme", "b", 3),
    ]
    assert await numbers(database, "b") == [("acme", 1), ("acme", 2), ("globex", 1), ("acme", 3)]


async def test_event_that_is_not_committed_takes_no_number(database: Database) -> None:
    try:
        async with database.transaction() as tx:
            tx.emit_event("acme", "a", "paused")
            await tx.write_outbox()
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    async with database.transaction() as tx:
        tx.emit_event("acme", "a", "paused")
    assert await numbers(database) == [("acme", 1)]


async def test_concurrent_transactions_neither_repeat_nor_leave_out_a_number(database: Database) -> None:
    async def emit(tasks: list[str]) -> None:
        for _ in range(10):
            async with database.transaction() as tx:
                for task in tasks:
                    tx.emit_event("acme", task, "paused")

    await asyncio.gather(*(emit(["a", "b"] if even else ["b", "a"]) for even in (True, False) * 3))
    for task in ("a", "b"):
        assert await numbers(database, task) == [("acme", number) for number in range(1, 61)]


async def test_deletion_of_a_task_does_not_restart_its_numbers(bus: Bus, database_url: str, tmp_path: Path) -> None:
    async with running_world(bus, database_url, stages(bus, tmp_path)) as world:
        await world.run("a")
        before = (await numbers(world.database))[-1][1]
        await world.control("delete", "a", until="deleted")
        await settled(world)
        assert await numbers(world.database) == [("acme", before + 1)]
