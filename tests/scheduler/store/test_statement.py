"""Statements that bypass SQLAlchemy share its transaction and errors; posted messages are written with it."""

import asyncio

import pytest
from sqlalchemy import Integer, func, insert, literal, select, text

from common.errors import Unavailable
from common.messages import Event
from scheduler_svc.base.database import Database
from scheduler_svc.base.sql import Statement, given
from scheduler_svc.base.states import TaskState
from scheduler_svc.base.tables import tasks, tenants
from scheduler_svc.base.transaction import OutboxMessage
from scheduler_svc.upkeep import outbox
from tests.scheduler.wire import database_behind_wire
from tests.support.scheduler.statements import execute

ADD = Statement(insert(tenants).values(id=given("of_tenant")))
NAMES = Statement(select(tenants.c.id, (func.length(tenants.c.id) + literal(1)).label("longer")).order_by(tenants.c.id))
END = Statement(select(func.pg_terminate_backend(func.pg_backend_pid()).label("ended")))


async def test_statement_is_rolled_back_with_its_transaction(database: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        async with database.transaction() as tx:
            await ADD.run(tx.connection, {"of_tenant": "acme"})
            assert [(row.id, row.longer) for row in await NAMES.run(tx.connection)] == [("acme", 5)]
            raise ZeroDivisionError
    async with database.transaction() as tx:
        assert await NAMES.run(tx.connection) == []
        assert await ADD.run(tx.connection, {"of_tenant": "other"}) == []
    async with database.transaction() as tx:
        assert (await tx.connection.execute(select(tenants.c.id))).scalars().all() == ["other"]


async def test_statement_is_parsed_and_planned_once_a_connection(database: Database) -> None:
    uses = text("SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE 'SELECT tenants.id, length%'")
    async with database.transaction() as tx:
        for _ in range(7):
            await NAMES.run(tx.connection)
        assert (await tx.connection.execute(uses)).all() == [(7, 0)]


async def test_lost_connection_is_reported_as_unavailable_and_replaced(database: Database) -> None:
    for _ in range(3):
        with pytest.raises(Unavailable, match="terminating connection"):
            async with database.transaction() as tx:
                await END.run(tx.connection)
        async with database.transaction() as tx:
            assert await NAMES.run(tx.connection) == []


async def test_interrupted_statement_reports_its_timeout_or_cancellation(database_url: str) -> None:
    async with database_behind_wire(database_url, patience_s=0.5) as (database, wire):
        wire.silence()
        with pytest.raises(Unavailable, match=r"did not answer within 0\.5 s"):
            async with database.transaction() as tx:
                await NAMES.run(tx.connection)
        database._patience_s = 60.0
        wire.speak()
        async with database.transaction() as tx:
            assert await NAMES.run(tx.connection) == []
        wire.silence()
        database._patience_s = 1.5  # ends before psycopg gives up on cancelling
        runner = asyncio.create_task(_asks(database))
        await asyncio.sleep(0.1)
        runner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await runner
        database._patience_s = 60.0
        wire.speak()
        async with database.transaction() as tx:
            assert await NAMES.run(tx.connection) == []


async def test_cancellation_that_psycopg_loses_as_the_answer_comes_ends_the_runner(database_url: str) -> None:
    """psycopg waits with `asyncio.wait_for`; here the test decides when the answer is there."""
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def asks(database: Database) -> None:
        async with database.transaction():
            await asyncio.wait_for(answer, 60)

    async with database_behind_wire(database_url, patience_s=60) as (database, _):
        runner = asyncio.create_task(asks(database))
        while not answer._callbacks:  # pyright: ignore
            await asyncio.sleep(0.01)
        answer.add_done_callback(lambda _: runner.cancel())
        answer.set_result(None)
        await asyncio.wait([runner])
        assert runner.cancelled()


async def _asks(database: Database) -> None:
    async with database.transaction() as tx:
        await NAMES.run(tx.connection)


def test_list_of_unknown_length_is_rejected_when_it_is_built() -> None:
    with pytest.raises(ValueError, match="spell the list out"):
        Statement(select(tasks.c.id).where(tasks.c.state.in_([TaskState.RUNNING, TaskState.PAUSED])))
    Statement(select(tasks.c.id).where(tasks.c.version == given("version", Integer)))


async def test_posted_messages_leave_in_order_and_only_with_their_transaction(database: Database) -> None:
    event = Event(tenant="acme", task="a", event="accepted", at_s=1.0, data={})
    for _ in range(3):  # also on a connection returned with unwritten messages
        with pytest.raises(ZeroDivisionError):
            async with database.transaction() as tx:
                tx.post([OutboxMessage("lost", event, "lost")])
                raise ZeroDivisionError
        await execute(database, "SELECT 1")
    async with database.transaction() as tx:
        tx.post([OutboxMessage("first", event, "1"), OutboxMessage("second", event, "2", {"more": "ä"})])
        tx.post_value("bucket", "key", event)
        tx.post_deletion("bucket", "key")
        tx.emit_event("acme", "a", "paused", {"reason": "why"})
        tx.outbox.post_encoded("last", b"\x00\xff", "4", {})
        assert await outbox.oldest_rows(tx.connection, 10) == []  # written at its end
    async with database.transaction() as tx:
        rows = await outbox.oldest_rows(tx.connection, 10)
        kept = (await tx.connection.execute(text("SELECT tenant, task, event, data FROM events"))).all()
    assert [(row.subject, row.message_id) for row in rows] == [
        ("first", "1"),
        ("second", "2"),
        ("$KV.bucket.key", ""),
        ("$KV.bucket.key", ""),
        ("events.acme.a", ""),
        ("last", "4"),
    ]
    assert Event.decode(rows[0].body) == Event.decode(rows[1].body) == Event.decode(rows[2].body) == event
    assert rows[1].headers["more"] == "ä" and rows[2].body.startswith(b"{")
    assert rows[3].body == b"" and rows[3].headers == {"KV-Operation": "DEL"}
    assert rows[5].body == b"\x00\xff" and rows[5].headers == {}
    assert [tuple(row) for row in kept] == [("acme", "a", "paused", {"reason": "why"})]
