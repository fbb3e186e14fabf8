"""Usage is recorded once, and a task's totals agree with the ledger."""

from common.spec import parse_spec
from scheduler_svc.base.database import Database
from scheduler_svc.tenancy.billing import ledger
from scheduler_svc.tenancy.billing.ledger import Entry
from scheduler_svc.training.queries import tasks
from scheduler_svc.training.queries.progress import progress_of
from tests.support.scheduler.stages import spec


async def test_usage_recorded_twice_counts_once(database: Database) -> None:
    entries = [Entry("acme", "a", "prompt", 0, 5), Entry("acme", "a", "sampled", 0, 7), Entry("acme", "b", "sampled", 0, 11)]
    async with database.transaction() as tx:
        for task in ("a", "b"):
            await tasks.add_task(tx.connection, task, parse_spec(spec(task)), submission="")
        await ledger.record_usage(tx.connection, entries)
        await ledger.record_usage(tx.connection, entries)
        await ledger.record_usage(tx.connection, [entries[1], Entry("acme", "a", "trained", 1, 100), Entry("acme", "a", "sampled", 1, 1)])
        await ledger.record_usage(tx.connection, [])
    async with database.transaction() as tx:
        assert await ledger.recorded_tokens(tx.connection, "a") == 5 + 7 + 100 + 1
        assert await ledger.recorded_tokens(tx.connection, "b") == 11
        assert (await progress_of(tx.connection, "a"))["a"].sampled_tokens == 7 + 1
