"""Prices, invoices and who pays, through the running scheduler and in PostgreSQL alone."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from common import streams
from common.bus import Bus, Outgoing
from common.messages import GroupContext, InvoiceAnswer, PricesAnswer, SetPrice, UsageAnswer
from common.spec import parse_spec
from scheduler_svc.base.database import Database
from scheduler_svc.base.deleted import delete_task
from scheduler_svc.reading.usage import tenants_usage
from scheduler_svc.tenancy.billing import budgets, ledger, prices
from scheduler_svc.tenancy.billing.ledger import Entry
from scheduler_svc.training.queries import tasks
from tests.scheduler.billing.prices import set_price
from tests.support.scheduler.asking import asker
from tests.support.scheduler.dead_letters import dead_letter
from tests.support.scheduler.finished import settled
from tests.support.scheduler.stages import Stages, running_world, spec
from tests.support.scheduler.statements import execute

NOBODY = "SELECT kind, sum(tokens) FROM ledger WHERE paid_by = 'nobody' GROUP BY kind ORDER BY kind"


async def test_an_invoice_is_what_the_ledger_has_at_the_prices_of_its_time(bus: Bus, nats_url: str, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world, asker(nats_url) as asks:
        await world.run("free")
        await set_price(world, "one", "sampled", "2.5", per=1_000_000)
        assert "reasons" not in await set_price(world, "two", "sampled", "0.000000000000000007", pool="tiny")
        await set_price(world, "three", "trained", "3")
        await world.run("paid")
        later = await set_price(world, "four", "sampled", "1000", pool="tiny", valid_from=datetime.now(UTC) + timedelta(hours=1))
        assert "reasons" not in later
        past = await set_price(world, "five", "sampled", "1", valid_from=datetime.now(UTC) - timedelta(seconds=1))
        assert "is in the past" in past["reasons"][0]
        assert "reasons" not in await set_price(world, "one", "sampled", "99"), "a repeated request changes nothing"
        assert [format(one.price, "f") for one in (await asks.ask(PricesAnswer, "acme", "prices")).prices] == [
            "2.5",
            "0.000000000000000007",
            "1000",
            "3",
        ]
        used = {
            (row.task, row.kind): int(row.tokens)
            for row in await world.rows("SELECT task, kind, sum(tokens) AS tokens FROM ledger GROUP BY 1, 2")
        }
        lines = (await asks.ask(InvoiceAnswer, "acme", "invoice")).lines
        money = {line.kind: line.money for line in lines}
        assert {line.kind: line.quantity for line in lines} == {
            kind: used["free", kind] + used["paid", kind] for kind in ("prompt", "sampled", "trained")
        }
        assert money == {
            "prompt": 0,
            "sampled": Decimal(used["paid", "sampled"]) * Decimal("0.000000000000000007"),
            "trained": Decimal(used["paid", "trained"]) * 3,
        }
        assert {line.day for line in lines} <= {datetime.now(UTC).date(), datetime.now(UTC).date() - timedelta(days=1)}
        assert (await asks.ask(InvoiceAnswer, "globex", "invoice")).lines == []
        assert (await asks.ask(InvoiceAnswer, None, "invoice")).lines == lines
        assert (await asks.ask(InvoiceAnswer, "acme", "invoice", last="2001-01-01")).lines == []
        assert (await asks.ask(InvoiceAnswer, "acme", "invoice", first="2001-01-01")).lines == lines


async def test_an_invoice_does_not_change_when_its_task_is_deleted(bus: Bus, nats_url: str, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world, asker(nats_url) as asks:
        await set_price(world, "one", "sampled", "0.3")
        await world.run("a")
        await world.run("b")
        before = (await asks.ask(InvoiceAnswer, "acme", "invoice")).lines
        await world.control("delete", "a", until="deleted")
        assert (await asks.ask(InvoiceAnswer, "acme", "invoice")).lines == before
        assert {line.kind for line in before} == {"prompt", "sampled", "trained"}
        await world.control("delete", "b", until="deleted")
        assert (await asks.ask(InvoiceAnswer, "acme", "invoice")).lines == before


async def test_nobody_pays_for_failures_of_the_operators_environment(bus: Bus, nats_url: str, database_url: str) -> None:
    def failure(group: GroupContext, member: int) -> str | None:
        return "the sandbox broke" if group.group == 0 and member == 1 else None

    async with running_world(bus, database_url, Stages(failure=failure)) as world, asker(nats_url) as asks:
        await set_price(world, "one", "sampled", "1")
        await world.run("a")
        await settled(world)
        assert await world.rows(NOBODY) == [("prompt", 2 * 3), ("sampled", 2 * 2)]
        lines = {line.kind: line for line in (await asks.ask(InvoiceAnswer, "acme", "invoice")).lines}
        assert (lines["void"].quantity, lines["void"].money) == (2 * 3 + 2 * 2, 0)
        assert lines["sampled"].money == lines["sampled"].quantity == 6 * 2 * 2


async def test_a_tenant_pays_for_equal_rewards_and_for_what_it_cancels(bus: Bus, database_url: str) -> None:
    stages = Stages(reward=lambda group, member: 0.5 if group.group == 0 else float(member), withheld=lambda group, member: group.group > 3)
    refilled = {"group_size": 2, "groups_per_step": 2, "max_staleness": 1, "max_refills": 1}
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a", spec(steps=9, algorithm=refilled))
        await world.rows_become("SELECT count(*) FROM groups WHERE void_reason = 'zero_variance'", [(1,)])
        await world.control("cancel", "a", until="cancelled")
        assert await world.rows(NOBODY) == []


async def test_complete_groups_of_a_task_that_its_trainer_fails_are_forgiven(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(trains=False)) as world:
        await world.begin("a", batches=1)
        await world.rows_become("SELECT count(*) FROM groups WHERE state IN ('ready', 'batched')", [(4,)])
        assert await world.rows(NOBODY) == []
        [batch] = world.stages.batches
        await dead_letter(bus, "train", "a", Outgoing(streams.batch("tiny", "a"), batch, "a:v0:batch"))
        await world.event("a", "failed")
        assert await world.rows(NOBODY) == [("prompt", 4 * 2 * 3), ("sampled", 4 * 2 * 2)]


async def test_stored_bytes_are_recorded_once_an_hour(database: Database) -> None:
    async with database.transaction() as tx:
        for task in ("a", "b"):
            await tasks.add_task(tx.connection, task, parse_spec(spec(task)), submission="")
        for name, task, size in (("a.v1", "a", 5), ("a.v2", "a", 7), ("b.v1", "b", 11), ("gone.v1", "gone", 13)):
            await tx.connection.execute(
                text("INSERT INTO stored_blobs (name, task, version, kind, bytes) VALUES (:name, :task, 1, 'adapter', :size)"),
                {"name": name, "task": task, "size": size},
            )
        assert await ledger.record_stored_bytes(tx.connection) == 2
        assert await ledger.record_stored_bytes(tx.connection) == 0
        found = await tx.connection.execute(text("SELECT task, tokens FROM ledger WHERE kind = 'stored_byte_hours' ORDER BY task"))
        assert [tuple(row) for row in found] == [("a", 12), ("b", 11)]
        totals = await tx.connection.execute(text("SELECT sum(booked_tokens), sum(sampled_tokens) FROM tasks"))
        assert tuple(totals.one()) == (0, 0), "bytes are no tokens"


async def test_bytes_of_packages_are_on_the_bill_once_an_hour_at_the_price_of_each_hour(database: Database) -> None:
    async with database.transaction() as tx:
        await tx.connection.execute(text("INSERT INTO tenants (id) VALUES ('acme'), ('globex')"))
        for tenant, digit, size, state in (("acme", "a", 5, "usable"), ("acme", "b", 7, "checking"), ("acme", "c", 9, "uploading")):
            await tx.connection.execute(
                text(
                    "INSERT INTO packages (tenant, digest, size_bytes, state, name, environments) "
                    "VALUES (:tenant, repeat(:digit, 64), :size, :state, 'games', '[{}]')"
                ),
                {"tenant": tenant, "digit": digit, "size": size, "state": state},
            )
        await tx.connection.execute(text("INSERT INTO prices (kind, pool, price, per) VALUES ('stored_byte_hours', 'tiny', 99, 1)"))
    await _record_package_bytes(database, 1)
    await _record_package_bytes(database, 0)
    assert await _package_bill(database) == [("acme", "", "stored_byte_hours", 12, 0)]
    async with database.transaction() as tx:
        await tx.connection.execute(text("UPDATE package_usage SET hour = hour - 1"))
        await tx.connection.execute(text("INSERT INTO prices (kind, price, per) VALUES ('stored_byte_hours', 2.5, 10)"))
        await budgets.put_budget(tx.connection, "acme", "total", "money", Decimal(100))
    await _record_package_bytes(database, 1)
    assert await _package_bill(database) == [("acme", "", "stored_byte_hours", 24, Decimal("3.00"))]
    async with database.transaction() as tx:
        await budgets.begin_periods(tx.connection)
        [standing] = (await budgets.standings(tx.connection)).found
        assert standing.spent == 3
        assert [one.stored_bytes for one in await tenants_usage(tx.connection, "acme")] == [5 + 7 + 9]
        assert [one.stored_bytes for one in await tenants_usage(tx.connection, None)] == [5 + 7 + 9, 0]


async def _record_package_bytes(database: Database, entries: int) -> None:
    async with database.transaction() as tx:
        assert await ledger.record_stored_bytes(tx.connection) == entries


async def _package_bill(database: Database) -> list[Any]:
    async with database.transaction() as tx:
        return [tuple(row) for row in await tx.connection.execute(text("SELECT tenant, pool, kind, quantity, money FROM tenant_invoice"))]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE prices SET price = 2",
        "DELETE FROM prices",
        "TRUNCATE prices",
        "INSERT INTO prices (kind, price, per, valid_from) VALUES ('sampled', 1, 1, now() - interval '1 second')",
        "INSERT INTO prices (kind, price, per) VALUES ('sampled', 1, 3)",
        "INSERT INTO prices (kind, price, per) VALUES ('sampled', -1, 1)",
        "INSERT INTO prices (kind, price, per) VALUES ('coffee', 1, 1)",
    ],
)
async def test_prices_are_never_changed_nor_set_for_the_past(database: Database, owner_url: str, statement: str) -> None:
    async with await Database.connect(owner_url) as owner:
        async with owner.transaction() as tx:
            await prices.add_price(tx.connection, SetPrice(request="one", of="sampled", price=Decimal(1)))
        with pytest.raises(DBAPIError):
            await execute(owner, statement)
    async with database.transaction() as tx:
        assert len(await prices.all_prices(tx.connection)) == 1


async def test_work_of_an_hour_ago_costs_what_it_did_then(database: Database) -> None:
    """Prices cannot be set for the past, so the work is moved instead: rows from before each price."""
    async with database.transaction() as tx:
        await tasks.add_task(tx.connection, "a", parse_spec(spec("a")), submission="")
        await ledger.record_usage(tx.connection, [Entry("acme", "a", "sampled", number, 10) for number in range(3)])
        await tx.connection.execute(text("UPDATE ledger SET at = now() + make_interval(hours => number)"))
        for number, price in enumerate((1, 2)):
            begins = datetime.now(UTC) + timedelta(minutes=30 + 60 * number)
            request = SetPrice(request=f"r{number}", of="sampled", price=Decimal(price), valid_from=begins)
            await prices.add_price(tx.connection, request)
        lines = await prices.invoice_lines(tx.connection, "acme", None, None, after=0, most=10)
        assert sum(line.money for line in lines) == 10 * 0 + 10 * 1 + 10 * 2
        await delete_task(tx.connection, "a", 1)
        assert await prices.invoice_lines(tx.connection, "acme", None, None, after=0, most=10) == lines
        assert all(isinstance(line.day, date) for line in lines)


async def test_the_time_of_environments_is_booked_once_at_its_price_and_by_the_rule_of_void_work(
    bus: Bus, nats_url: str, database_url: str
) -> None:
    def failure(group: GroupContext, member: int) -> str | None:
        return "the sandbox broke" if group.group == 0 and member == 1 else None

    async with running_world(bus, database_url, Stages(failure=failure, env_ms=250)) as world, asker(nats_url) as asks:
        await set_price(world, "one", "env_ms", "0.5")
        await world.run("a")
        await settled(world)
        lines = {line.kind: line for line in (await asks.ask(InvoiceAnswer, "acme", "invoice")).lines}
        assert (lines["env_ms"].quantity, lines["env_ms"].money) == (6 * 2 * 250, 6 * 2 * 125)
        assert (lines["void_env_ms"].quantity, lines["void_env_ms"].money) == (2 * 250, 0)
        [tenant] = (await asks.ask(UsageAnswer, "acme", "usage")).tenants
        assert tenant.env_ms == 7 * 2 * 250
        assert await world.rows("SELECT env_ms FROM tenant_usage WHERE tenant = 'acme'") == [(7 * 2 * 250,)]
        await world.control("delete", "a", until="deleted")
        assert (await asks.ask(UsageAnswer, "acme", "usage")).tenants[0].env_ms == 7 * 2 * 250
        assert await world.rows("SELECT env_ms FROM tenant_usage WHERE tenant = 'acme'") == [(7 * 2 * 250,)]
