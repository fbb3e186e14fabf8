"""Usage is recorded once, and a task's totals agree with the ledger, also for rows of older versions."""

from alembic import command
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from common.spec import parse_spec
from scheduler_svc.revision import alembic_config
from scheduler_svc.store.database import Database
from scheduler_svc.store.queries.tenancy import ledger
from scheduler_svc.store.queries.tenancy.ledger import Entry
from scheduler_svc.store.queries.training import tasks
from scheduler_svc.store.queries.training.progress import progress_of
from tests.scheduler.stages import spec


async def test_usage_recorded_twice_counts_once(database: Database) -> None:
    entries = [Entry("acme", "a", "prompt", 0, 5), Entry("acme", "a", "sampled", 0, 7), Entry("acme", "b", "sampled", 0, 11)]
    async with database.transaction() as tx:
        for task in ("a", "b"):
            await tasks.add_task(tx.connection, task, parse_spec(spec(task)))
        await ledger.record_usage(tx.connection, entries)
        await ledger.record_usage(tx.connection, entries)
        await ledger.record_usage(tx.connection, [entries[1], Entry("acme", "a", "trained", 1, 100), Entry("acme", "a", "sampled", 1, 1)])
        await ledger.record_usage(tx.connection, [])
    async with database.transaction() as tx:
        assert await ledger.recorded_tokens(tx.connection, "a") == 5 + 7 + 100 + 1
        assert await ledger.recorded_tokens(tx.connection, "b") == 11
        assert (await progress_of(tx.connection, "a"))["a"].sampled_tokens == 7 + 1


def test_usage_recorded_by_an_older_version_counts_after_the_migration(owner_url: str) -> None:
    config = alembic_config(owner_url)
    command.downgrade(config, "0009")
    engine = create_engine(owner_url, poolclass=NullPool)
    book = "INSERT INTO ledger (tenant, task, kind, number, tokens) VALUES ('acme', 'a', '{}', {}, {}) ON CONFLICT DO NOTHING"
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO tenants (id) VALUES ('acme')"))
        connection.execute(
            text(
                "INSERT INTO tasks (id, tenant, name, pool, spec, state, priority, steps, group_size, groups_per_step, max_staleness, "
                "trajectory_tokens) VALUES ('a', 'acme', 'a', 'tiny', '{}', 'running', 0, 1, 2, 2, 0, 9)"
            )
        )
        connection.execute(text(book.format("sampled", 0, 7)))
        connection.execute(text(book.format("prompt", 0, 5)))
    command.upgrade(config, "head")
    with engine.begin() as connection:
        connection.execute(text(book.format("sampled", 0, 7)))  # repeated
        connection.execute(text(book.format("sampled", 1, 3)))
        found = connection.execute(text("SELECT booked_tokens, sampled_tokens FROM tasks")).one()
    assert tuple(found) == (15, 10)
