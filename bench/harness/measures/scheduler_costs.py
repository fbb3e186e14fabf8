"""Time of one admission and of one noted step, on a scheduler's database; each is rolled back after it is measured."""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from bench.harness import report
from bench.harness.load.injected import Work
from bench.harness.load.standins import POOL, TrainedSpan, updated
from bench.harness.load.tasks import submission
from bench.harness.services import BenchError
from common.messages import TrainBatch
from common.spec import parse_spec
from marlaas.stack import servers
from scheduler_svc.base.scheduling_policy import SchedulingPolicy
from scheduler_svc.tenancy.decisions.shares import Capacity
from scheduler_svc.training.decisions.pool_load import PoolTimes

TIMED = 40
"""Admissions and steps measured per case."""
WAITING = Work(1, 1000, 8, 8, 1, 64)
"""A task that may admit groups."""
PAST_STEPS = (10, 1_000, 10_000)
"""Steps that a task has taken before the one that is measured."""


def migrated_database(port: int, name: str) -> str:
    """A new database with the scheduler's schema; returns its address."""
    from scheduler_svc.migrate import migrate

    servers.create_database(port, name)
    admin_url = servers.database_url(port, name, role=servers.ADMIN, passfile=Path(os.environ["PGPASSFILE"]))
    migrate(servers.database_url(port, name, role=servers.OWNER), admin_url=admin_url)
    return servers.database_url(port, name)


async def analyze(url: str) -> None:
    """Count the database's rows for its planner, as PostgreSQL does by itself after a while. Only the owner of tables may."""
    from sqlalchemy import make_url, text

    from scheduler_svc.base.database import Database

    owners = make_url(url).set(username=servers.OWNER).render_as_string(hide_password=False)
    async with await Database.connect(owners) as database, database.transaction() as tx:
        await tx.connection.execute(text("ANALYZE"))


class _RolledBack(Exception):
    pass


@asynccontextmanager
async def _rolled_back(database: Any) -> AsyncGenerator[Any]:
    """A transaction that is rolled back at its end."""
    with suppress(_RolledBack):
        async with database.transaction() as tx:
            yield tx
            raise _RolledBack


def decisions(folder: Path, server: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of admitting one group, transaction included, by the number of candidate tasks."""
    del folder
    port, _ = server
    found: dict[str, Any] = {}
    for tenants in ("one tenant", "a tenant each"):
        for count in options.counts:
            url = migrated_database(port, f"decisions_{count}_{tenants.replace(' ', '_')}")
            found[f"{count} tasks, {tenants}"] = asyncio.run(_decisions(url, count, tenants == "one tenant"))
    return found


async def _decisions(url: str, count: int, one_tenant: bool) -> dict[str, float]:
    from scheduler_svc.base.database import Database

    async with await Database.connect(url) as database:
        await run_tasks(database, count, one_tenant=one_tenant)
        await analyze(url)
        spent, computed = await admission_times(database)
    return {
        "p50_ms": round(1000 * statistics.median(spent), 2),
        "p90_ms": round(1000 * report.percentile(spent, 0.9), 2),
        "scheduler_cpu_p50_ms": round(1000 * statistics.median(computed), 2),
    }


async def run_tasks(database: Any, count: int, *, one_tenant: bool) -> None:
    """Write running tasks that may admit groups, of one tenant or each of its own."""
    from sqlalchemy import text

    from scheduler_svc.training.queries import tasks

    async with database.transaction() as tx:
        for number in range(count):
            raw = submission(f"t{number:05}", WAITING).message.spec  # pyright: ignore
            await tasks.add_task(tx.connection, f"t{number:05}", parse_spec(raw | ({"tenant": "all"} if one_tenant else {})), submission="")
        await tx.connection.execute(text("UPDATE tasks SET state = 'running', family = 'module', virtual_time = random() * 1000"))
        await tx.connection.execute(text("UPDATE tenants SET virtual_time = random() * 1000"))


async def admission_times(database: Any) -> tuple[list[float], list[float]]:
    """Seconds of admissions of one group, each rolled back, and of this process's processor in them. Raises: BenchError."""
    from scheduler_svc.training import admission

    spent: list[float] = []
    computed: list[float] = []
    for _ in range(TIMED):
        began, began_cpu = time.perf_counter(), time.process_time()
        async with _rolled_back(database) as tx:
            opened, _ = await admission.admit(
                tx, {POOL: Capacity(WAITING.group_size, 10**9)}, SchedulingPolicy.ASYNCHRONOUS, PoolTimes(time.time())
            )
            await tx.write_outbox()
            spent.append(time.perf_counter() - began)
            computed.append(time.process_time() - began_cpu)
            if opened != 1:
                raise BenchError(f"{opened} groups were admitted, expected 1")
    return spent, computed


def past(folder: Path, server: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of sending and recording one step, and of garbage collection's queries after it, by the number of past steps."""
    del folder, options
    port, _ = server
    return {f"{count}": asyncio.run(_past(migrated_database(port, f"past_{count}"), count)) for count in PAST_STEPS}


PAST = """
UPDATE tasks SET state = 'running', family = 'module', version = {steps}, admitted = 4 * {steps} + 2, voided = 2 * {steps};
INSERT INTO groups (size, task, number, version, state, row, seed, charged_tokens, step, deadline_at, ended_at)
    SELECT 8, 't', n, n / 2, 'trained', n, n, 1, n / 2, now(), now() FROM generate_series(0, 2 * {steps} - 1) n;
INSERT INTO groups (size, task, number, version, state, row, seed, charged_tokens, deadline_at)
    SELECT 8, 't', n, {steps}, 'ready', n, n, 1, now() FROM generate_series(2 * {steps}, 2 * {steps} + 1) n;
INSERT INTO trajectories (task, "group", member, state, reward, sequence, scored_at)
    SELECT 't', number, m, CASE state WHEN 'ready' THEN 'scored' ELSE state END, 1, number * 8 + m + 1, now()
    FROM groups, generate_series(0, 7) m;
INSERT INTO groups (size, task, number, version, state, void_reason, row, seed, charged_tokens, deadline_at, ended_at)
    SELECT 8, 't', n, 0, 'void', 'zero_variance', n, n, 1, now(), now() - interval '1 hour'
    FROM generate_series(2 * {steps} + 2, 4 * {steps} + 1) n;
INSERT INTO steps (task, version, state, reward, staleness_mean, staleness_max, sampled_tokens, adapter, checkpoint,
                   first_admitted_at, first_scored_at, last_scored_at, trained_at)
    SELECT 't', n, 'trained', 0, 0, 0, 1, '{{}}', jsonb_build_object('name', n::text, 'size_bytes', 1, 'sha256', repeat('0', 64)),
           now(), now(), now(), now() FROM generate_series(0, {steps} - 1) n;
INSERT INTO ledger (tenant, task, kind, number, tokens)
    SELECT 't', 't', kind, n, 1 FROM unnest(ARRAY['prompt', 'sampled']) kind, generate_series(0, 2 * {steps} - 1) n
"""
"""Rows of task `t` after {steps} steps of two groups, as many void groups, and its next step, which is ready."""


async def _past(url: str, count: int) -> dict[str, float]:
    from sqlalchemy import text

    from scheduler_svc.base.database import Database
    from scheduler_svc.training.queries import steps, tasks
    from scheduler_svc.training.results import weight_updates
    from scheduler_svc.upkeep.deletion.storage import superseded_blobs

    spec = parse_spec(submission("t", Work(1, count + 10, 2, 8, 1, 64)).message.spec)  # pyright: ignore
    async with await Database.connect(url) as database:
        spent: list[float] = []
        async with database.transaction() as tx:
            await tasks.add_task(tx.connection, "t", spec, submission="")
            for statement in PAST.format(steps=count).split(";"):
                await tx.connection.execute(text(statement))
        await analyze(url)
        for _ in range(TIMED):
            began = time.perf_counter()
            async with _rolled_back(database) as tx:
                members = (await steps.batch_groups(tx.connection, {"t": (count, [2 * count, 2 * count + 1])}))["t"]
                batch = TrainBatch(
                    tenant="t", task="t", pool=POOL, version=count, spec=spec, checkpoint=None, start=None, groups=members, weight=1.0
                )
                await steps.note_digests(tx.connection, [batch])
                message = updated(batch, TrainedSpan("t", count, began, began, began), 16).message
                trained = await weight_updates.weights_updated(tx, [message], SchedulingPolicy.ASYNCHRONOUS)  # pyright: ignore
                await tx.write_outbox()
                await superseded_blobs(tx.connection, trained)
                await steps.first_needed_sequences(tx.connection, ["t"])
                spent.append(time.perf_counter() - began)
    return {"p50_ms": round(1000 * statistics.median(spent), 2), "p90_ms": round(1000 * report.percentile(spent, 0.9), 2)}
