"""Rows of the audit in PostgreSQL alone: added once, never changed, counted where refused."""

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from scheduler_svc.base import audit
from scheduler_svc.base.audit import Accepted, Refused, accepted, actor_of, refused
from scheduler_svc.base.database import Database
from scheduler_svc.migrate import migrate
from tests.support.postgres import as_role
from tests.support.scheduler.canaries import CANARY
from tests.support.scheduler.statements import execute, select

KEY = "U" + "A" * 55
JOB = actor_of(f"jobs.cancel.acme.{KEY}", 7)
ROWS = "SELECT tenant, key, via, verb, target, outcome, reason, count FROM audit ORDER BY id"
CHANGES = (
    "UPDATE audit SET target = 'b'",
    "UPDATE audit SET count = count - 1 WHERE outcome = 'refused'",
    "UPDATE audit SET count = count + 1, reason = 'key' WHERE outcome = 'refused'",
    "UPDATE audit SET count = count + 1 WHERE outcome = 'accepted'",
    "UPDATE audit SET outcome = 'accepted', reason = '' WHERE outcome = 'rejected'",
    "DELETE FROM audit",
    "TRUNCATE audit",
)


@pytest.fixture
async def acme(database: Database) -> Database:
    await execute(database, "INSERT INTO tenants (id) VALUES ('acme'), ('globex')")
    return database


async def record(database: Database, *entries: Accepted | Refused) -> None:
    async with database.transaction() as tx:
        tx.record(*entries)


async def rows(database: Database, query: str = ROWS) -> list[tuple[object, ...]]:
    return await select(database, query)


async def test_rows_are_written_with_the_effect_or_not_at_all(acme: Database) -> None:
    await record(acme, accepted(JOB, "a"))
    with pytest.raises(ZeroDivisionError):
        async with acme.transaction() as tx:
            tx.record(accepted(JOB, "b"))
            await tx.connection.execute(text("INSERT INTO tenants (id) VALUES ('initech')"))
            raise ZeroDivisionError
    assert await rows(acme) == [("acme", KEY, "key", "cancel", "a", "accepted", "", 1)]


async def test_a_rejected_task_has_a_row_with_the_kind_of_reason_alone(acme: Database) -> None:
    await record(acme, accepted(actor_of("jobs.submit.acme", 1), "a"), audit.rejected("acme", "a", "environment"))
    await record(acme, audit.rejected("acme", "b", "malformed"))
    assert await rows(acme) == [
        ("acme", "", "short form", "submit", "a", "accepted", "", 1),
        ("acme", "", "scheduler", "submit", "a", "rejected", "environment", 1),
        ("acme", "", "scheduler", "submit", "b", "rejected", "malformed", 1),
    ]


async def test_a_redelivered_job_leaves_one_row_and_a_repeated_one_two(acme: Database) -> None:
    for job in (7, 7, 8):
        await record(acme, accepted(actor_of(f"jobs.cancel.acme.{KEY}", job), "a"))
    assert len(await rows(acme)) == 2
    several = [accepted(actor_of("jobs.prune.acme", 9), task) for task in ("a", "b")]
    await record(acme, *several)
    await record(acme, *several)
    assert (await rows(acme))[2:] == [("acme", "", "short form", "prune", task, "accepted", "", 1) for task in ("a", "b")]


async def test_refusals_are_counted_by_tenant_key_verb_and_reason(acme: Database) -> None:
    for number in range(40):
        await record(acme, refused(JOB, f"task: no task '{CANARY}-{number}' of tenant 'acme'"), refused(JOB, "tenant: 'acme' is deleted"))
    await record(acme, refused(actor_of("jobs.submit.globex", 1), f"environment.options.{CANARY}: unknown"))
    await record(acme, refused(actor_of("jobs.submit.globex", 2), f"{CANARY}: unknown"))
    found = await rows(acme)
    if len(found) > 4:  # the hour has ended meanwhile
        pytest.skip("the hour ended during the test")
    assert found == [
        ("acme", KEY, "key", "cancel", "", "refused", "task", 40),
        ("acme", KEY, "key", "cancel", "", "refused", "tenant", 40),
        ("globex", "", "short form", "submit", "", "refused", "environment", 1),
        ("globex", "", "short form", "submit", "", "refused", "invalid", 1),
    ]


async def test_what_a_subject_invents_is_not_kept(acme: Database) -> None:
    for subject in (f"jobs.{CANARY}.acme", f"jobs.cancel.{CANARY}", f"jobs.cancel.acme.{CANARY}", "jobs.cancel", "jobs.cancel._all"):
        await record(acme, refused(actor_of(subject, 1), "task"))
    found = {row[:4] for row in await rows(acme)}
    assert found == {
        ("acme", "", "short form", "unknown"),
        ("", "", "short form", "cancel"),
        ("acme", "", "short form", "cancel"),
        ("_all", "", "short form", "cancel"),
    }


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("role", ["marlaas_app", "marlaas_owner", "marlaas"])
async def test_no_row_is_changed_and_only_the_owner_deletes(acme: Database, database_url: str, role: str, change: str) -> None:
    await record(acme, accepted(JOB, "a"), audit.rejected("acme", "a", "environment"), refused(JOB, "task"), refused(JOB, "task"))
    before = await rows(acme)
    url = as_role(database_url, role)
    with create_engine(url, poolclass=NullPool).connect() as connection:
        if (role, change) == ("marlaas_owner", "DELETE FROM audit"):
            assert connection.execute(text(change)).rowcount == 3
        else:
            with pytest.raises(DBAPIError, match=r"never changed|permission denied"):
                connection.execute(text(change))
    assert await rows(acme) == before


async def test_owner_deletes_what_is_kept_no_longer(acme: Database, owner_url: str) -> None:
    await record(acme, accepted(JOB, "new"))
    old = "now() - interval '9 days', 'acme', 'ask', 'adapter', 'old', 'accepted'"
    await rows(acme, f"INSERT INTO audit (at, tenant, via, verb, target, outcome) VALUES ({old}) RETURNING id")
    migrate(owner_url)
    assert [row[4] for row in await rows(acme)] == ["new", "old"]
    migrate(owner_url, audit_days=10)
    assert [row[4] for row in await rows(acme)] == ["new", "old"]
    migrate(owner_url, audit_days=8)
    assert [row[4] for row in await rows(acme)] == ["new"]


async def test_lines_are_those_of_the_tenant_and_name_its_own_keys_only(acme: Database) -> None:
    operators = "U" + "B" * 55
    await rows(
        acme,
        f"INSERT INTO keys (key, tenant, name, role) VALUES ('{KEY}', 'acme', 'ci', 'owner'), ('{operators}', NULL, 'alice', 'admin')"
        " RETURNING key",
    )
    await record(acme, accepted(JOB, "a"), accepted(actor_of(f"jobs.set-tenant.acme.{operators}", 8), "acme", {"weight": 2.0}))
    await record(acme, accepted(actor_of("jobs.submit.globex", 9), "b"))
    async with acme.transaction() as tx:
        own = await audit.lines(tx.connection, "acme", None, after=0, most=9)
        everything = await audit.lines(tx.connection, None, None, after=0, most=9)
        later = await audit.lines(tx.connection, None, None, after=everything[0].number, most=1)
        [(now,)] = await tx.connection.execute(text("SELECT now()"))
        assert await audit.lines(tx.connection, None, now, after=0, most=9) == []
    assert [(line.name, line.target, line.detail) for line in own] == [("ci", "a", {}), (None, "acme", {"weight": 2.0})]
    assert [line.name for line in everything] == ["ci", "alice", None]
    assert later == everything[1:2]
