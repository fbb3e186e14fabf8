"""Frequent statements read live rows and not the past, also under PostgreSQL's generic plans."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import TrainBatch, WeightUpdated
from common.spec import parse_spec
from marlaas.stack import servers
from scheduler_svc.base.database import ADMISSION_LOCK, Database
from scheduler_svc.base.scheduling_policy import SchedulingPolicy
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy.billing import ledger
from scheduler_svc.tenancy.shares import work_in_flight
from scheduler_svc.training.queries import candidates, deadlines, evaluations, groups, members, steps, tasks
from scheduler_svc.training.queries.progress import LATEST_GROUPS, progress_of
from scheduler_svc.training.results import weight_updates
from scheduler_svc.upkeep.deletion.storage import superseded_blobs
from tests.support.postgres import as_role, copied_database, database_copy
from tests.support.scheduler.stages import spec, updated

TASKS, PAST = 20, 400
MAX_ROWS = 4 * TASKS
"""Maximum rows that a statement reads of a table."""
PAST_AND_PRESENT = f"""
UPDATE tasks SET state = 'running', family = 'toy', version = {PAST}, admitted = {2 * PAST + 2}, voided = {PAST};
INSERT INTO groups (size, task, number, version, state, row, seed, charged_tokens, step, deadline_at, ready_at, ended_at)
    SELECT 2, id, n, n, 'trained', n, n, 1, n, now(), now(), now() FROM tasks, generate_series(0, {PAST - 1}) n;
INSERT INTO groups (size, task, number, version, state, row, seed, charged_tokens, deadline_at)
    SELECT 2, id, n, n, CASE n WHEN {PAST} THEN 'ready' ELSE 'open' END, n, n, 1, now() FROM tasks, generate_series({PAST}, {PAST + 1}) n;
INSERT INTO trajectories (task, "group", member, state, reward, sequence, scored_at)
    SELECT task, number, m, CASE state WHEN 'ready' THEN 'scored' ELSE state END, 1, number * 2 + m + 1, now()
    FROM groups, generate_series(0, 1) m;
INSERT INTO groups (size, task, number, version, state, void_reason, row, seed, charged_tokens, deadline_at, ended_at)
    SELECT 2, id, {PAST + 2} + n, n, 'void', 'zero_variance', n, n, 1, now(), now() - interval '1 hour'
    FROM tasks, generate_series(0, {PAST - 1}) n;
INSERT INTO steps (task, version, state, reward, staleness_mean, staleness_max, sampled_tokens, adapter, checkpoint,
                   first_admitted_at, first_scored_at, last_scored_at, trained_at)
    SELECT id, n, 'trained', 0, 0, 0, 1, '{{}}', jsonb_build_object('name', n::text, 'size_bytes', 1, 'sha256', repeat('0', 64)),
           now(), now(), now(), now() FROM tasks, generate_series(0, {PAST - 1}) n;
INSERT INTO ledger (tenant, task, kind, number, tokens)
    SELECT tenant, id, kind, n, 1 FROM tasks, unnest(ARRAY['prompt', 'sampled', 'trained']) kind, generate_series(0, {PAST - 1}) n;
INSERT INTO evaluations (task, version, state) SELECT id, 0, 'finished' FROM tasks;
INSERT INTO groups (task, number, version, protocol, row, seed, size, state, charged_tokens)
    SELECT id, 1000000000 + n, 0, 'main', 2147483648 + n, 0, 4, 'ended', 0 FROM tasks, generate_series(0, {PAST - 1}) n;
ANALYZE
"""
READ = """
SELECT relname, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables
WHERE relname IN ('groups', 'trajectories', 'steps', 'ledger')
"""


async def rows_read(connection: AsyncConnection) -> Counter[str]:
    """Rows read by table, in transactions that the server's statistics lack, this one included."""
    return Counter(dict(tuple(row) for row in (await connection.execute(text(READ))).all()))


async def status(connection: AsyncConnection) -> None:
    await progress_of(connection, "t0")


async def step_batched_and_trained(tx: Transaction) -> None:
    members = await steps.batch_groups(tx.connection, {"t0": (PAST, [PAST])})
    batch = TrainBatch(
        tenant="acme",
        task="t0",
        pool="tiny",
        version=PAST,
        spec=parse_spec(spec()),
        checkpoint=None,
        start=None,
        groups=members["t0"],
        weight=1.0,
    )
    await steps.note_digests(tx.connection, [batch])
    message = updated(batch).message
    assert isinstance(message, WeightUpdated)
    trained = await weight_updates.weights_updated(tx, [message], SchedulingPolicy.ASYNCHRONOUS)
    assert [task.id for task in trained] == ["t0"]
    assert await superseded_blobs(tx.connection, trained)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def filled_database(postgres_port: int, migrated_database: str) -> str:
    """Template: tasks with many past rows and a few live ones."""
    url = copied_database(postgres_port, migrated_database)
    async with await Database.connect(as_role(url, servers.OWNER)) as database, database.transaction() as tx:
        for number in range(TASKS):
            await tasks.add_task(tx.connection, f"t{number}", parse_spec(spec(f"t{number}", steps=2 * PAST)), submission="")
        for statement in PAST_AND_PRESENT.split(";"):
            await tx.connection.execute(text(statement))
    return url.rpartition("/")[2]


@pytest.mark.parametrize(
    "ask",
    [
        lambda connection: candidates.has_admissible_work(connection, lock=ADMISSION_LOCK),
        lambda connection: candidates.evaluation_candidates(connection, {"tiny"}, limit=4),
        work_in_flight,
        lambda connection: deadlines.overdue_groups(connection, time.time() - 1000),
        lambda connection: deadlines.time_spent(connection, time.time()),
        lambda connection: deadlines.overdue_evaluation_groups(connection, time.time()),
        lambda connection: groups.unbatched_groups(connection, {"t0": PAST, "t1": PAST}),
        lambda connection: steps.first_needed_sequences(connection, ["t0", "t1"]),
        lambda connection: steps.sent_before(connection, 0.0),
        lambda connection: groups.ready_groups(connection),
        lambda connection: groups.refills_by_version(connection, {("t0", PAST - 1)}),
        lambda connection: members.scored_attempts(connection, [("t0", PAST), ("t0", PAST + 1)]),
        lambda connection: evaluations.complete(connection, {("t0", 0)}),
        lambda connection: evaluations.live_group_keys(connection, "t0"),
        status,
        lambda connection: ledger.recorded_tokens(connection, "t0"),
        step_batched_and_trained,
    ],
)
async def test_generic_plans_do_not_read_the_past(
    postgres_port: int, filled_database: str, ask: Callable[[AsyncConnection], Awaitable[object]]
) -> None:
    with database_copy(postgres_port, filled_database) as url:
        async with await Database.connect(url) as database:
            async with database.transaction() as tx:
                await tx.connection.execute(text("SET LOCAL plan_cache_mode = force_generic_plan"))
                before = await rows_read(tx.connection)
                await (ask(tx) if ask is step_batched_and_trained else ask(tx.connection))
                read = await rows_read(tx.connection) - before
            if ask in (status, step_batched_and_trained):  # a task's status reads a fixed number of its groups
                read["groups"] -= LATEST_GROUPS
            assert all(rows <= MAX_ROWS for rows in read.values()), read
