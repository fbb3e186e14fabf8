"""What a tenant's ask reads does not depend on how many other tenants there are, also under PostgreSQL's generic plans."""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from common.bus import Bus
from common.messages import (
    AskAccess,
    AskAdapter,
    AskAliases,
    AskFiles,
    AskSamples,
    AskTask,
    AskTasks,
    AskTerms,
    AskWebhooks,
    Message,
)
from common.spec import parse_spec
from marlaas.stack import servers
from scheduler_svc.base.audit import Actor
from scheduler_svc.base.database import Database
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy.question import Question, Sources
from scheduler_svc.training.queries import tasks
from scheduler_svc.training.waiting import LATEST_OF_ALL_POOLS
from scheduler_svc.verbs.asks import VERBS
from tests.scheduler.ask.questions import questions_of
from tests.support.postgres import as_role, copied_database, database_copy
from tests.support.scheduler.stages import POOLS, spec

TENANTS, TASKS = 500, 4
MAX_ROWS = 30 * TASKS
"""Maximum rows that an ask reads of a table; the tables have at least four times as many."""
ASKED = "tenant-250"
HISTORY = f"""
INSERT INTO tenants (id) SELECT 'tenant-' || n FROM generate_series(1, {TENANTS - 1}) n;
INSERT INTO tasks (submission, id, tenant, name, pool, spec, state, priority, steps, group_size, groups_per_step, max_staleness,
        trajectory_tokens)
    SELECT '', n.id || '-' || k, n.id, 'x', pool, spec, state, priority, steps, group_size, groups_per_step, max_staleness,
        trajectory_tokens
    FROM tasks, tenants n, generate_series(0, {TASKS - 1}) k;
DELETE FROM tasks WHERE id = 'first';
UPDATE tasks SET state = CASE WHEN id ~ '-[01]$' THEN 'running' ELSE 'finished' END, family = 'toy', version = 1, admitted = 3;
INSERT INTO groups (size, task, number, version, state, row, seed, charged_tokens, step, deadline_at, ready_at, ended_at)
    SELECT 2, id, n, n, 'trained', n, n, 1, n, now(), now(), now() FROM tasks, generate_series(0, 1) n;
INSERT INTO groups (size, task, number, version, state, row, seed, charged_tokens, deadline_at)
    SELECT 2, id, 2, 1, 'open', 2, 2, 1, now() FROM tasks WHERE id LIKE '%-0';
INSERT INTO trajectories (task, "group", member, state)
    SELECT task, number, m, 'open' FROM groups, generate_series(0, 1) m WHERE state = 'open' AND task ~ '-.5.-0$';
INSERT INTO steps (task, version, state, reward, staleness_mean, staleness_max, sampled_tokens, first_admitted_at, first_scored_at,
                   last_scored_at)
    SELECT id, 1, 'batched', 0, 0, 0, 1, now(), now(), now() FROM tasks WHERE id ~ '-.5.-1$';
INSERT INTO steps (task, version, state, reward, staleness_mean, staleness_max, sampled_tokens, adapter, checkpoint,
                   first_admitted_at, first_scored_at, last_scored_at, trained_at)
    SELECT id, 0, 'trained', 0, 0, 0, 1, jsonb_build_object('task', id, 'version', 1, 'rank', 4, 'blob',
           jsonb_build_object('name', id || 'a', 'size_bytes', 1, 'sha256', repeat('0', 64)), 'canary',
           jsonb_build_object('ids', '', 'logprobs', '')),
           jsonb_build_object('name', id || 'c', 'size_bytes', 1, 'sha256', repeat('0', 64)), now(), now(), now(), now() FROM tasks;
INSERT INTO evaluations (task, version, protocol, state, reward, lower_bound, finished_at)
    SELECT id, 1, 'main', 'finished', 0, 0, now() FROM tasks;
INSERT INTO groups (task, number, version, protocol, row, seed, size, state, charged_tokens)
    SELECT id, 1000000000 + n, 1, 'main', 2147483648 + n, 0, 1, 'ended', 0 FROM tasks, generate_series(0, 1) n;
INSERT INTO trajectories (task, "group", member, state, reward, sequence, prompt_tokens, sampled_tokens, turns)
    SELECT task, number, 0, 'evaluated', 1, 1, 1, 1, 1 FROM groups WHERE protocol IS NOT NULL;
INSERT INTO ledger (tenant, task, kind, number, tokens)
    SELECT tenant, id, kind, n, 1 FROM tasks, unnest(ARRAY['prompt', 'sampled', 'trained']) kind, generate_series(0, 2) n;
INSERT INTO events (tenant, task, event, data, number) SELECT tenant, id, 'step', '{{}}', n FROM tasks, generate_series(1, 5) n;
INSERT INTO dead_letters (sequence, stage, task, subject, reason, attempts)
    SELECT row_number() OVER (), 'env', id, 'prompts.open', 'r', 1 FROM tasks;
INSERT INTO dead_letters (sequence, stage, subject, reason, attempts)
    SELECT 1000000 + row_number() OVER (), 'jobs', 'jobs.submit.' || id, 'r', 1 FROM tenants;
INSERT INTO deleted_tasks (id, tenant, name, state, version, prompt_tokens, sampled_tokens, trained_tokens, evaluation_tokens, deleted_by,
                           submitted_at, ended_at)
    SELECT id || '-gone-' || n, id, 'gone', 'finished', 1, 1, 1, 1, 1, 1, now(), now() FROM tenants, generate_series(1, 4) n;
INSERT INTO deleted_usage (task, day, kind, tenant, pool, quantity, money)
    SELECT id, now()::date, 'sampled', tenant, 'tiny', 1, 1 FROM deleted_tasks;
INSERT INTO served_requests (request, tenant, pool, task, version, attempt, prompt_tokens, cached_tokens, sampled_tokens)
    SELECT id, tenant, 'tiny', id, 1, 0, 1, 0, 1 FROM tasks;
INSERT INTO served_usage (tenant, day, pool, task, kind, quantity, money)
    SELECT tenant, now()::date, 'tiny', id, kind, 1, 1 FROM tasks, unnest(ARRAY['served_prompt', 'served_sampled']) kind;
INSERT INTO stored_blobs (name, task, version, kind, bytes)
    SELECT id || kind || n, id, n, kind, 1 FROM tasks, unnest(ARRAY['adapter', 'checkpoint']) kind, generate_series(1, 2) n;
INSERT INTO stored_blobs (name, task, version, kind, bytes) SELECT id || 'kept', id, 1, 'adapter', 1 FROM deleted_tasks;
INSERT INTO limits (tenant, asks_per_minute, max_tokens, max_stored_bytes, max_adapters)
    SELECT id, 1000, 1000000, 1000000, 1000 FROM tenants;
INSERT INTO budgets (tenant, period, unit, amount, begins_at, before) SELECT id, 'total', unit, 1000000, now(), 0
    FROM tenants, unnest(ARRAY['tokens', 'money']) unit;
INSERT INTO keys (key, tenant, name, role)
    SELECT 'U' || lpad(translate(substr(id, 8), '0123456789', 'ABCDEFGHIJ'), 55, 'X'), id, 'k', 'owner' FROM tenants;
INSERT INTO audit (tenant, via, verb, target, outcome)
    SELECT id, 'ask', 'adapter', n::text, 'accepted' FROM tenants, generate_series(1, 4) n;
ANALYZE
"""
READ = "SELECT relname, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables"
TASK = f"{ASKED}-0"
REQUESTS: dict[str, Message] = {
    **questions_of(TASK),
    "why, of a step": AskTask(task=f"{ASKED}-1"),
    "adapter": AskAdapter(task=TASK), "access": AskAccess(), "samples": AskSamples(task=TASK), "terms": AskTerms(),
    "aliases": AskAliases(), "webhooks": AskWebhooks(), "files": AskFiles(),
    "tasks, by reward": AskTasks(sort="reward", descending=True, cursor=f"0.0~{TASK}"), "tasks, by state": AskTasks(sort="state"),
    "tasks, by age": AskTasks(sort="created", pool="tiny", states=["running"], name="x", text="250"),
}  # fmt: skip


class Counting:
    """The database, and how many rows of each table its transactions have read."""

    def __init__(self, database: Database, plans: str) -> None:
        self._database = database
        self._plans = plans
        self.read: Counter[str] = Counter()

    @asynccontextmanager
    async def transaction(self, *, patience_s: float | None = None) -> AsyncGenerator[Transaction]:
        async with self._database.transaction(patience_s=patience_s) as tx:
            await tx.connection.execute(text(f"SET LOCAL plan_cache_mode = {self._plans}"))
            before = await self._rows(tx)
            yield tx
            await tx.write_outbox()
            self.read += await self._rows(tx) - before
            tx.audited.clear()

    @asynccontextmanager
    async def statements(self, *, patience_s: float | None = None) -> AsyncGenerator[AsyncConnection]:
        async with self.transaction(patience_s=patience_s) as tx:
            yield tx.connection

    async def _rows(self, tx: Transaction) -> Counter[str]:
        return Counter(dict(tuple(row) for row in (await tx.connection.execute(text(READ))).all()))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def filled_database(postgres_port: int, migrated_database: str) -> str:
    """Template: many tenants that have something of everything."""
    url = copied_database(postgres_port, migrated_database)
    async with await Database.connect(as_role(url, servers.OWNER)) as database, database.transaction() as tx:
        await tasks.add_task(tx.connection, "first", parse_spec(spec("first", tenant="tenant-0", steps=2)), submission="")
        for statement in HISTORY.split(";"):
            await tx.connection.execute(text(statement))
    return url.rpartition("/")[2]


@pytest.mark.parametrize("plans", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("verb", REQUESTS)
async def test_an_ask_does_not_read_the_rows_of_others(bus: Bus, postgres_port: int, filled_database: str, verb: str, plans: str) -> None:
    with database_copy(postgres_port, filled_database) as url:
        async with await Database.connect(url) as database:
            counting = Counting(database, plans)
            sources = Sources.of(bus, cast(Any, counting), POOLS)
            question = Question(ASKED, sources, Actor(ASKED, verb, "ask"))
            await question.count()
            await VERBS[verb.partition(",")[0]](question, REQUESTS[verb])
    read = {table: rows for table, rows in counting.read.items() if rows > MAX_ROWS}
    if verb == "why, of a step":  # it reads a fixed number of the latest steps
        read = {table: rows for table, rows in read.items() if rows > LATEST_OF_ALL_POOLS + MAX_ROWS}
    assert read == {}


ACCELERATORS = ("executors", "slices", "moves", "trace")


def test_no_verb_with_rows_is_left_out() -> None:
    assert set(VERBS) - set(REQUESTS) == {"prices", "pools", "replicas", "chunk", "file-chunk", *ACCELERATORS}, (
        "a list of all, none of the database's, what `adapter` reads, and those of accelerators, which grow with executors and slices"
    )
