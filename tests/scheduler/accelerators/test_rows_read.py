"""What is read of `slices` does not grow with their number: PostgreSQL counts the rows that a statement reads."""

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.pool import NullPool

from common.accelerators import Tier
from scheduler_svc.accelerators import asked
from scheduler_svc.accelerators.queries import slices
from scheduler_svc.accelerators.queries.standing import standings
from scheduler_svc.base.database import Database
from tests.support.scheduler.statements import execute

OLD, NEW = 4000, 1000
"""Slices that may be deleted, and those that may not."""
ROWS = f"""
INSERT INTO accelerators (id, spec, epoch) VALUES ('a', '{{}}', {OLD + NEW});
INSERT INTO executors (accelerator, id, pool, service) VALUES ('a', 'rollout-one', 'one', 'rollout');
INSERT INTO slices (accelerator, epoch, executor, pool, function, reason, tasks, expected_s, from_tier, ordered_at, awake_at, ended_at,
    ended, booked_at, switch_ms, busy_ms, idle_ms)
    SELECT 'a', n, 'rollout-one', 'one', 'generate', 'ratio', ARRAY['t'], 1, CASE WHEN n < 10 THEN 'host' ELSE 'device' END, began, began,
           began + interval '1 second', 'switched', now(), 0, 1000, 0
    FROM generate_series(1, {OLD + NEW}) n, LATERAL (SELECT date_trunc('hour', now()) - interval '2 hours' + n * interval '1 second'
        - CASE WHEN n <= {OLD} THEN interval '60 days' ELSE interval '1 day' END AS began) b
"""


@pytest.fixture
async def full(database: Database, owner_url: str) -> Database:
    await execute(database, *ROWS.split(";\n"))
    with create_engine(owner_url, poolclass=NullPool).begin() as connection:
        connection.execute(text("ANALYZE slices"))
    return database


async def rows_read(connection: AsyncConnection) -> int:
    """Rows of `slices` that this transaction has read so far."""
    counted = text("SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relname = 'slices'")
    return int((await connection.execute(counted)).scalar_one())


async def test_latest_move_to_the_device_is_found_at_once(full: Database) -> None:
    async with full.transaction() as tx:
        found = (await standings(tx.connection, ["a"]))["a"]
        assert found.moved_ms is not None and found.executors[0].tier is Tier.OFF
        assert await rows_read(tx.connection) < 10


async def test_share_of_switches_reads_the_slices_of_the_last_hour(full: Database) -> None:
    async with full.transaction() as tx:
        (shown,) = await asked.shown_executors(tx.connection, None, for_operator=True)
        assert shown.switch_share is None
        assert await rows_read(tx.connection) < 10


async def test_deletion_reads_each_slice_a_few_times(full: Database) -> None:
    async with full.transaction() as tx:
        assert await slices.forget(tx.connection, 30, OLD - 1) == OLD - 1
        assert await rows_read(tx.connection) < 5 * (OLD + NEW)
