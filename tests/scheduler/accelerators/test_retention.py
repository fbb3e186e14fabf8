"""Old slices are deleted with their shares, without a gap in what is left; the ledger keeps what they cost."""

import pytest
from sqlalchemy import text

from common.bus import Bus
from scheduler_svc.accelerators.queries import slices
from scheduler_svc.base.database import Database
from scheduler_svc.doctor.database_rules import examine_database
from tests.support.scheduler.executors import TWO_TASKS, running_world

OLD, NEW = 40, 10
"""Days ago."""
DAYS = 30


def a_slice(accelerator: str, epoch: int, days: int, booked: str = "now()") -> str:
    """Of 1 s, paid by `t1` where it is booked."""
    number = epoch + (100 if accelerator == "b" else 0)
    ms = "NULL, NULL, NULL" if booked == "NULL" else "0, 1000, 0"
    began = f"date_trunc('day', now()) - interval '{days} days' + interval '{epoch} seconds'"
    return (
        "INSERT INTO slices (accelerator, epoch, number, executor, pool, function, reason, tasks, expected_s, from_tier, ordered_at,"
        " awake_at, ended_at, ended, booked_at, switch_ms, busy_ms, idle_ms) OVERRIDING SYSTEM VALUE"
        f" SELECT '{accelerator}', {epoch}, {number}, 'rollout-one', 'one', 'generate', 'first', '{{t1}}', 0, 'host', began, began,"
        f" began + interval '1 second', 'died', {booked}, {ms} FROM (SELECT {began} AS began) b"
    )


def paid(accelerator: str, epoch: int) -> tuple[str, str]:
    number = epoch + (100 if accelerator == "b" else 0)
    return (
        f"INSERT INTO slice_shares (accelerator, epoch, task, tenant, ms) VALUES ('{accelerator}', {epoch}, 't1', 'acme', 1000)",
        f"INSERT INTO ledger (tenant, task, kind, number, tokens) VALUES ('acme', 't1', 'accelerator', {number}, 1000)",
    )


async def fill(database: Database, *kept: tuple[str, int, int, str]) -> None:
    """Accelerator, epoch, days ago, and when it was booked."""
    async with database.transaction() as tx:
        statements = [*TWO_TASKS, *(f"INSERT INTO accelerators (id, spec, epoch) VALUES ('{name}', '{{}}', 99)" for name in ("a", "b"))]
        for accelerator, epoch, days, booked in kept:
            statements.append(a_slice(accelerator, epoch, days, booked))
            statements += paid(accelerator, epoch) if booked != "NULL" else ()
        for statement in statements:
            await tx.connection.execute(text(statement))


async def left(database: Database) -> list[tuple[str, int]]:
    async with database.transaction() as tx:
        rows = (await tx.connection.execute(text("SELECT accelerator, epoch FROM slices ORDER BY 1, 2"))).all()
        shares = (await tx.connection.execute(text("SELECT accelerator, epoch FROM slice_shares ORDER BY 1, 2"))).all()
        booked = (
            await tx.connection.execute(text("SELECT accelerator, epoch FROM slices WHERE booked_at IS NOT NULL ORDER BY 1, 2"))
        ).all()
        assert shares == booked
        assert [each for each in await examine_database(tx.connection) if "slice" in each.rule] == []
    return [(row.accelerator, row.epoch) for row in rows]


async def forget(database: Database, most: int = 100) -> int:
    async with database.transaction() as tx:
        return await slices.forget(tx.connection, DAYS, most)


async def paid_ms(database: Database) -> int:
    async with database.transaction() as tx:
        return int((await tx.connection.execute(text("SELECT coalesce(sum(tokens), 0) FROM ledger"))).scalar_one())


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ([("a", 1, OLD, "now()"), ("a", 2, OLD, "now()"), ("a", 3, NEW, "now()")], [("a", 3)]),
        ([("a", 1, OLD, "now()"), ("a", 2, OLD, "now()")], [("a", 2)]),  # its newest
        ([("a", 1, OLD, "now()"), ("a", 2, OLD, "NULL"), ("a", 3, OLD, "now()"), ("a", 4, NEW, "now()")], [("a", 2), ("a", 3), ("a", 4)]),
        ([("a", 1, OLD, "now()"), ("a", 2, NEW, "now()"), ("b", 1, NEW, "now()"), ("b", 2, NEW, "now()")], [("a", 2), ("b", 1), ("b", 2)]),
        ([("a", 1, NEW, "now()"), ("a", 2, NEW, "now()")], [("a", 1), ("a", 2)]),
    ],
)
async def test_old_booked_slices_are_deleted_from_the_oldest_on(
    database: Database, kept: list[tuple[str, int, int, str]], expected: list[tuple[str, int]]
) -> None:
    await fill(database, *kept)
    before = await paid_ms(database)
    assert await forget(database) == len(kept) - len(expected)
    assert await left(database) == expected
    assert await paid_ms(database) == before
    assert await forget(database) == 0


async def test_so_many_are_deleted_at_once_the_oldest_first(database: Database) -> None:
    await fill(database, *(("a", epoch, OLD, "now()") for epoch in range(1, 6)))
    assert await forget(database, most=3) == 3
    assert await left(database) == [("a", 4), ("a", 5)]


async def test_leader_deletes_old_slices(bus: Bus, database_url: str) -> None:
    async with await Database.connect(database_url) as database:
        await fill(database, ("a", 1, OLD, "now()"), ("a", 2, NEW, "now()"))
    async with running_world(bus, database_url) as world:
        await world.rows_become("SELECT epoch FROM slices", [(2,)])
