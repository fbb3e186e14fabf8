"""Served tokens: reported by the gateway, booked once, and paid for, through the running scheduler and in PostgreSQL alone."""

import asyncio
from decimal import Decimal
from random import Random
from typing import Any

from sqlalchemy import text

from common import streams
from common.bus import Bus, Outgoing
from common.messages import BudgetsAnswer, FailuresAnswer, InvoiceAnswer, ServingEnded, SetPrice, UsageAnswer
from scheduler_svc.base import deleted
from scheduler_svc.base.database import Database
from scheduler_svc.doctor.database_rules import examine_database
from scheduler_svc.tenancy.billing import budgets, prices, served
from scheduler_svc.tenancy.billing.served import requests_ended
from scheduler_svc.tenancy.limits import used_by
from tests.scheduler.billing.prices import set_price
from tests.support.scheduler.asking import asker
from tests.support.scheduler.finished import clean, settled
from tests.support.scheduler.stages import Stages, running_world, spec
from tests.support.scheduler.statements import execute, select
from tests.support.waiting import eventually

BOOKED = "SELECT count(*), coalesce(sum(prompt_tokens), 0), coalesce(sum(sampled_tokens), 0) FROM served_requests"
SUMS = "SELECT tenant, pool, task, kind, quantity, money FROM served_usage ORDER BY 1, 2, 3, 4"


def ended(request: str, **changes: Any) -> ServingEnded:
    given = {"attempt": 0, "tenant": "acme", "key": None, "pool": "tiny", "task": "a", "version": 1}
    return ServingEnded.model_validate(given | {"request": request, "prompt_tokens": 10, "cached_tokens": 4, "sampled_tokens": 3} | changes)


async def report(bus: Bus, message: ServingEnded, subject: str | None = None) -> None:
    """Publish it, as a gateway that has no record of having done so: NATS drops no repetition."""
    await bus.publish(Outgoing(subject or streams.served(message.task, message.request), message, ""))


async def booked(database: Database, *messages: ServingEnded) -> None:
    async with database.transaction() as tx:
        await requests_ended(tx, messages)


async def tenants(database: Database) -> None:
    await execute(database, "INSERT INTO tenants (id, weight) VALUES ('acme', 2), ('globex', 1)")


async def broken(database: Database) -> list[str]:
    async with database.transaction() as tx:
        return [str(one) for one in await examine_database(tx.connection)]


AFTER_THE_END = {"env_ms", "adapter_bytes", "checkpoint_bytes", "batch_bytes", "live_tasks"}
"""What changes once a task has ended: environments close, and what is superseded is deleted."""


async def test_each_request_is_booked_once_and_paid_for(bus: Bus, nats_url: str, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world, asker(nats_url) as asks:
        await world.run("a")
        await world.run("theirs", spec(tenant="globex"))
        await set_price(world, "p1", "served_prompt", "2")
        await set_price(world, "p2", "served_sampled", "0.5", pool="tiny")
        async with world.database.transaction() as tx:
            await budgets.put_budget(tx.connection, "acme", "total", "tokens", Decimal(10**6))
            await budgets.put_budget(tx.connection, "acme", "total", "money", Decimal(10**6))
        await settled(world)  # what is stored of the ended task is part of the usage too
        [before] = (await asks.ask(UsageAnswer, "acme", "usage")).tenants
        [(time, weight)] = await world.rows("SELECT virtual_time, weight FROM tenants WHERE id = 'acme'")
        spent = {one.unit: one.spent for one in (await asks.ask(BudgetsAnswer, "acme", "budgets")).budgets}
        await report(bus, ended("r1"))
        await report(bus, ended("r2", task=None, version=None, sampled_tokens=0))
        for attempt in range(3):  # of gateways that do not know of each other
            await report(bus, ended("r1", attempt=attempt, sampled_tokens=99))
        await report(bus, ended("r3", pool="large", prompt_tokens=0, cached_tokens=0))
        await world.rows_become(BOOKED, [(3, 20, 6)])
        await settled(world)
        assert await world.rows(SUMS) == [
            ("acme", "large", "a", "served_sampled", 3, 0),
            ("acme", "tiny", "", "served_prompt", 10, 20),
            ("acme", "tiny", "a", "served_prompt", 10, 20),
            ("acme", "tiny", "a", "served_sampled", 3, Decimal("1.5")),
        ]
        lines = (await asks.ask(InvoiceAnswer, "acme", "invoice")).lines
        found = [(line.pool, line.kind, line.quantity, line.money) for line in lines if line.kind.startswith("served")]
        assert found == [
            ("large", "served_sampled", 3, 0), ("tiny", "served_prompt", 20, 40), ("tiny", "served_sampled", 3, Decimal("1.5")),
        ]  # fmt: skip
        answer = await asks.ask(UsageAnswer, "acme", "usage")
        [tenant], [task] = answer.tenants, answer.tasks
        served = {"served_prompt_tokens": 20, "served_sampled_tokens": 6}
        assert tenant.model_dump(exclude=AFTER_THE_END) == before.model_dump(exclude=AFTER_THE_END) | served
        assert (task.served_prompt_tokens, task.served_sampled_tokens) == (10, 6)
        view = "SELECT served_prompt_tokens, served_sampled_tokens FROM tenant_usage ORDER BY tenant"
        assert await world.rows(view) == [(20, 6), (0, 0)]
        [(after, _)] = await world.rows("SELECT virtual_time, weight FROM tenants WHERE id = 'acme'")
        assert after == time + 26 / weight, "it counts for the tenant's share"
        now = {one.unit: one.spent for one in (await asks.ask(BudgetsAnswer, "acme", "budgets")).budgets}
        assert {unit: now[unit] - spent[unit] for unit in now} == {"tokens": 26, "money": Decimal("41.5")}
        assert all(not line.kind.startswith("served") for line in (await asks.ask(InvoiceAnswer, "globex", "invoice")).lines)
        assert (await asks.ask(UsageAnswer, "globex", "usage")).tenants[0].served_prompt_tokens == 0
        assert await broken(world.database) == []


async def test_versions_of_ended_and_deleted_tasks_are_booked(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.run("a")
        await report(bus, ended("r1"))
        await world.rows_become(BOOKED, [(1, 10, 3)])
        await settled(world)
        await world.control("delete", "a", until="deleted")
        await report(bus, ended("r2"))
        await world.rows_become(BOOKED, [(2, 20, 6)])
        assert await world.rows(SUMS) == [("acme", "tiny", "a", "served_prompt", 20, 0), ("acme", "tiny", "a", "served_sampled", 6, 0)]
        assert await world.rows("SELECT sum(quantity) FROM tenant_invoice WHERE kind LIKE 'served%'") == [(26,)]
        await clean(world)


async def test_report_that_is_wrong_harms_no_other(bus: Bus, nats_url: str, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world, asker(nats_url) as asks:
        await world.run("a")
        wrong = {
            "nobody": (ended("w1", tenant="nobody"), None, "there is no tenant 'nobody' to book a served request for"),
            "subject": (ended("w2"), streams.served("b", "w2"), "the subject names task 'b', the message 'a'"),
            "request": (ended("w3"), streams.served("a", "w4"), "the subject names request 'w4', the message 'w3'"),
            "cached": (ended("w5", cached_tokens=11), None, "11 tokens of its prompt were cached, which has 10"),
            "version": (ended("w6", version=None), None, "it names task a and version None; the base model has neither"),
        }
        for message, subject, _ in wrong.values():
            await report(bus, message, subject)
        garbage = ended("w7").model_copy(update={"prompt_tokens": -1})
        await report(bus, garbage)
        await report(bus, ended("r1"))
        await world.rows_become(BOOKED, [(1, 10, 3)])
        await world.rows_become("SELECT count(*) FROM dead_letters WHERE stage = 'book'", [(6,)])
        letters = (await asks.ask(FailuresAnswer, None, "failures")).failures
        for _, _, reason in wrong.values():
            assert any(reason in letter.reason for letter in letters), (reason, letters)
        assert (await asks.ask(FailuresAnswer, "acme", "failures")).failures == [], "they are the operator's"
        assert await world.rows("SELECT state FROM tasks") == [("finished",)]


async def test_reports_wait_while_postgresql_does_not_answer(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.run("a")
        async with world.database.transaction() as tx:
            await tx.connection.execute(text("LOCK TABLE served_requests"))
            for number in range(20):
                await report(bus, ended(f"r{number}"))
            assert await bus.streams.subjects(streams.SERVED) != {}
        await world.rows_become(BOOKED, [(20, 200, 60)])


async def test_replicas_that_book_the_same_requests_count_each_once(database: Database) -> None:
    random = Random(5)
    await tenants(database)
    messages = [
        ended(f"r{number}", tenant=random.choice(["acme", "globex"]), task=random.choice(["a", "b"]), pool=random.choice(["tiny", "large"]))
        for number in range(200)
    ]

    async def replica() -> None:
        for _ in range(8):
            await booked(database, *random.choices(messages, k=60))
        for start in range(0, 200, 50):
            await booked(database, *messages[start : start + 50])

    await asyncio.gather(*(replica() for _ in range(4)))
    assert await select(database, BOOKED) == [(200, 2000, 600)]
    assert await select(database, "SELECT sum(quantity) FROM served_usage") == [(2600,)]
    times = await select(database, "SELECT id, virtual_time * weight FROM tenants ORDER BY id")
    assert times == [(tenant, 13 * sum(one.tenant == tenant for one in messages)) for tenant in ("acme", "globex")]
    assert await broken(database) == []


async def test_request_that_ends_while_a_price_is_set_waits_for_it(database: Database) -> None:
    """Its time is after the price's beginning, so it must not be booked as long as nobody sees the price."""
    await tenants(database)
    async with database.transaction() as tx:
        await prices.add_price(tx.connection, SetPrice(request="p1", of="served_prompt", price=Decimal(2)))
        booking = asyncio.create_task(booked(database, ended("r1")))
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

        async def is_decided() -> bool:
            return booking.done() or bool(await select(database, waiting))

        await eventually(is_decided)
    await booking
    assert await select(database, "SELECT kind, money FROM served_usage ORDER BY kind") == [("served_prompt", 20), ("served_sampled", 0)]
    assert await broken(database) == []


async def test_deleted_tenant_leaves_what_it_paid_and_no_request(database: Database) -> None:
    await tenants(database)
    await booked(database, ended("r1", key="U" + "A" * 55), ended("r2", tenant="globex"))
    async with database.transaction() as tx:
        assert await deleted.begin_tenant(tx.connection, "acme", 1, "q")
        await deleted.count_tenant(tx.connection, "acme", 0)
        await deleted.finish_tenant(tx.connection, "acme")
    assert await select(database, "SELECT tenant, request FROM served_requests") == [("globex", "r2")]
    assert await select(database, "SELECT tenant, kind, quantity FROM tenant_invoice WHERE tenant = 'acme' ORDER BY kind") == [
        ("acme", "served_prompt", 10),
        ("acme", "served_sampled", 3),
    ]
    await booked(database, ended("r3"))
    assert await select(database, "SELECT sum(quantity) FROM served_usage WHERE tenant = 'acme'") == [(26,)], "it was given these"
    assert await broken(database) == []


async def test_requests_of_past_days_are_forgotten_and_their_tokens_are_not(database: Database) -> None:
    await tenants(database)
    await booked(database, ended("r1"))
    begin = f"date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - make_interval(days => {served.KEPT_DAYS})"
    columns = "request, tenant, pool, task, version, attempt, prompt_tokens, cached_tokens, sampled_tokens, at"
    async with database.transaction() as tx:
        for request, at in (("first", begin), ("before", f"{begin} - interval '1 second'")):
            row = f"('{request}', 'acme', 'tiny', 'a', 1, 0, 1, 0, 1, {at})"
            await tx.connection.execute(text(f"INSERT INTO served_requests ({columns}) VALUES {row}"))
        await served.forget_requests(tx.connection)
    assert await select(database, "SELECT request FROM served_requests ORDER BY 1") == [("first",), ("r1",)]
    assert await select(database, "SELECT sum(quantity) FROM tenant_invoice") == [(13,)]


async def test_served_tokens_count_for_the_limit_of_tokens(database: Database) -> None:
    await tenants(database)
    await booked(database, ended("r1"), ended("r2", tenant="globex"), ended("r3", task=None, version=None))
    async with database.transaction() as tx:
        assert (await used_by(tx.connection, "acme"))["max_tokens"] == 26
        assert (await used_by(tx.connection, "globex"))["max_tokens"] == 13


async def test_a_budgets_period_begins_with_what_was_served_in_it(database: Database) -> None:
    await tenants(database)
    await booked(database, ended("r1"))
    await execute(database, "UPDATE served_usage SET day = day - 40")
    await booked(database, ended("r2"))
    async with database.transaction() as tx:
        for period in ("day", "total"):
            await budgets.put_budget(tx.connection, "acme", period, "tokens", Decimal(100))
        await budgets.begin_periods(tx.connection)
        found = {one.period: one.spent for one in (await budgets.standings(tx.connection)).found}
    assert found == {"day": 13, "total": 26}
