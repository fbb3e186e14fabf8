"""Budgets through the running scheduler: nothing is spent beyond them, tasks pause and go on."""

from decimal import Decimal
from typing import Any

from sqlalchemy import text

from common import streams
from common.bus import Bus, Outgoing
from common.messages import BudgetsAnswer, Event, GroupContext, SetBudget, WhyAnswer
from common.spec import parse_spec
from scheduler_svc.base.database import Database
from scheduler_svc.tenancy.billing import budgets, ledger
from scheduler_svc.tenancy.billing.ledger import Entry
from scheduler_svc.training.queries import tasks
from tests.scheduler.billing.prices import set_price
from tests.support.scheduler.asking import asker
from tests.support.scheduler.stages import Stages, World, running_world, spec
from tests.support.waiting import eventually, eventually_equals

GROUP_TOKENS = parse_spec(spec()).trajectory_tokens * 2
"""Worst case of a group of two, sampled; the same again to train it."""
SPENT = (
    "SELECT coalesce(sum(quantity), 0) FROM tenant_invoice WHERE tenant = 'acme' AND kind IN ('prompt', 'sampled', 'trained', 'evaluation')"
)


async def set_budget(world: World, request: str, amount: int | str | None, unit: str = "tokens", period: str = "total") -> dict[str, Any]:
    """Data of the answer."""
    given = {"tenant": "acme", "request": request, "period": period, "unit": unit, "amount": amount}
    await world.bus.publish(Outgoing(streams.job("set-budget", "acme"), SetBudget.model_validate(given), f"budget:{request}"))
    async for delivery in world.bus.streams.follow(streams.EVENTS, streams.events("acme", "none")):
        event = delivery.read(Event)
        if event.event == "budget" and event.data.get("request") == request:
            return event.data
    raise AssertionError(request)


async def start_tenant(world: World) -> None:
    """There is a tenant from its first task on."""
    await world.run("first", spec(steps=1))


async def test_a_task_pauses_at_a_budget_and_goes_on_when_it_is_raised(bus: Bus, nats_url: str, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world, asker(nats_url) as asks:
        assert "no tenant" in (await set_budget(world, "early", 1))["reasons"][0]
        await start_tenant(world)
        [(spent,)] = await world.rows(SPENT)
        await set_budget(world, "one", amount := int(spent) + 2 * GROUP_TOKENS)
        await world.submit("a", spec(steps=20))
        await world.run("other", spec(tenant="globex"))
        reason = (await world.event("a", "paused"))["reason"]
        assert reason.startswith(f"budget: {amount} tokens in all; spent ")
        await world.rows_become("SELECT number FROM groups WHERE task = 'a' AND state IN ('open', 'batched')", [])
        [(state, over, stored)] = await world.rows("SELECT state, over_budget, reason FROM tasks WHERE id = 'a'")
        assert (state, over, stored) == ("paused", True, reason)
        why = await asks.ask(WhyAnswer, "acme", "why", task="a")
        assert (why.cause, why.number, why.sentence) == ("budget", amount, f"it is paused by its tenant's {reason}")
        [one] = (await asks.ask(BudgetsAnswer, "acme", "budgets")).budgets
        assert one.spent == (await world.rows(SPENT))[0][0] <= one.amount == amount
        assert (await asks.ask(BudgetsAnswer, "globex", "budgets")).budgets == []
        assert "used_up" in [event["reported"] for event in await world.events("none", "budget") if "reported" in event]
        await set_budget(world, "two", int(one.spent * 5 // 4))
        reported = "SELECT reported FROM budgets"
        await world.rows_become(reported, [("nearly",)])
        await set_budget(world, "three", 10**9)
        await world.event("a", "finished")
        await world.event("a", "resumed")
        assert await world.rows(reported) == [("",)]


async def test_money_of_a_budget_is_what_the_invoice_says(bus: Bus, nats_url: str, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world, asker(nats_url) as asks:
        await start_tenant(world)
        for kind, price in (("prompt", "0.1"), ("sampled", "0.3"), ("trained", "0.7")):
            await set_price(world, f"price-{kind}", kind, price)
        amount = GROUP_TOKENS + 40  # a group's worst case is 0.3 + 0.7 a token
        await set_budget(world, "one", amount, unit="money", period="month")
        await world.submit("a", spec(steps=300, algorithm={"group_size": 2, "groups_per_step": 1, "max_staleness": 0}))
        await world.event("a", "paused")
        [(invoice,)] = await world.rows("SELECT sum(money) FROM tenant_invoice WHERE tenant = 'acme'")
        [one] = (await asks.ask(BudgetsAnswer, None, "budgets")).budgets
        assert one.spent == invoice and 0 <= one.amount - one.spent - one.reserved < GROUP_TOKENS and one.spent <= amount


async def test_forgiven_work_does_not_count(bus: Bus, nats_url: str, database_url: str) -> None:
    def failure(group: GroupContext, member: int) -> str | None:
        return "the sandbox broke" if group.group == 0 else None

    async with running_world(bus, database_url, Stages(failure=failure)) as world, asker(nats_url) as asks:
        await world.run("a", spec(steps=1))
        await set_budget(world, "one", 10**6)
        [one] = (await asks.ask(BudgetsAnswer, "acme", "budgets")).budgets
        [(void,)] = await world.rows("SELECT sum(tokens) FROM ledger WHERE paid_by = 'nobody'")
        [(all_of_it,)] = await world.rows("SELECT sum(tokens) FROM ledger")
        assert void > 0 and one.spent == all_of_it - void


async def test_only_tasks_paused_by_the_budget_go_on_with_it(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await start_tenant(world)
        await set_budget(world, "one", 0)
        for task in ("held", "own", "ended"):
            await world.submit(task, spec(steps=2))
            await world.event(task, "paused")
        await world.control("pause", "own")
        await world.rows_become("SELECT over_budget FROM tasks WHERE id = 'own'", [(False,)])
        await world.control("cancel", "ended", until="cancelled")
        await set_budget(world, "two", None)
        await world.event("held", "finished")
        assert await world.rows("SELECT state FROM tasks WHERE id IN ('own', 'ended') ORDER BY id") == [("cancelled",), ("paused",)]
        await world.control("resume", "own", until="resumed")
        await world.event("own", "finished")


async def test_evaluations_reserve_and_spend_as_well(bus: Bus, database_url: str) -> None:
    evaluated = spec(steps=1, evaluation={"every": 1, "prompts": 2, "attempts": 16, "temperature": 1.0})
    async with running_world(bus, database_url, Stages()) as world:
        await start_tenant(world)
        [(spent,)] = await world.rows(SPENT)
        await set_budget(world, "one", amount := int(spent) + 7 * GROUP_TOKENS)  # an evaluation's group needs 8
        await world.submit("a", evaluated)
        reason = (await world.event("a", "paused"))["reason"]
        assert reason.endswith(f"the next group needs at most {8 * GROUP_TOKENS}")
        [(now,)] = await world.rows(SPENT)
        assert now <= amount
        await set_budget(world, "two", 10**9)
        await world.event("a", "finished")


async def test_a_new_period_begins_with_nothing_spent(database: Database) -> None:
    async with database.transaction() as tx:
        await tasks.add_task(tx.connection, "a", parse_spec(spec("a")), submission="")
        await ledger.record_usage(tx.connection, [Entry("acme", "a", "sampled", number, 10**number) for number in range(3)])
        await tx.connection.execute(text("UPDATE ledger SET at = now() - interval '40 days' WHERE number = 0"))
        for period in ("day", "month", "total"):
            await budgets.put_budget(tx.connection, "acme", period, "tokens", Decimal(1000))
        await budgets.begin_periods(tx.connection)
        found = {one.period: one.spent for one in (await budgets.standings(tx.connection)).found}
        assert found == {"day": 110, "month": 110, "total": 111}
        # The same as if a month had passed since the budgets were looked at:
        await tx.connection.execute(
            text("UPDATE budgets SET begins_at = begins_at - interval '32 days', reported = 'used_up' WHERE period <> 'total'")
        )
        await tx.connection.execute(text("UPDATE ledger SET at = now() - interval '35 days' WHERE number = 1"))
        await budgets.begin_periods(tx.connection)
        found = {one.period: (one.spent, one.reported) for one in (await budgets.standings(tx.connection)).found}
        assert found == {"day": (100, ""), "month": (100, ""), "total": (111, "")}


async def test_what_tasks_paid_is_what_is_on_their_invoices(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.run("a")
        await set_price(world, "one", "sampled", "0.000003")
        await set_price(world, "two", "trained", "11")
        await world.run("b")
        paid = await world.rows("SELECT id, paid_tokens, paid_money FROM tasks ORDER BY id")
        billed = await world.rows("SELECT task, sum(quantity), sum(money) FROM task_invoice GROUP BY task ORDER BY task")
        assert [tuple(row) for row in paid] == [tuple(row) for row in billed]
        assert paid[0][2] == 0 < paid[1][2]


async def test_the_time_of_environments_is_reserved_until_the_deadline_and_never_costs_more(
    bus: Bus, nats_url: str, database_url: str
) -> None:
    """The environment reports more than a deadline allows, as one that runs away, or a forged score, would."""
    stages = Stages(env_ms=10**6, withheld=lambda group, member: group.task == "a" and group.group == 1)
    limited = {"limits": {"episode_timeout_s": 60.0}, "algorithm": {"group_size": 2, "groups_per_step": 1, "max_staleness": 0}}
    async with running_world(bus, database_url, stages) as world, asker(nats_url) as asks:
        await start_tenant(world)
        await set_price(world, "price", "env_ms", "0.001")
        amount, group = 300, 2 * 60
        await set_budget(world, "one", amount, unit="money")
        await world.submit("a", spec(steps=5, **limited))
        await eventually(lambda: any(opened.task == "a" and opened.group == 1 for opened in stages.opened))

        async def standing() -> tuple[int, int]:
            [one] = (await asks.ask(BudgetsAnswer, "acme", "budgets")).budgets
            return int(one.spent), int(one.reserved)

        await eventually_equals(standing, (group, group))
        assert await world.rows("SELECT tokens FROM ledger WHERE task = 'a' AND kind = 'env_ms'") == [(120_000,)]
        await world.submit("b", spec(steps=5, **limited))  # 60 are left
        await world.run("other", spec(tenant="globex"))
        assert await world.rows("SELECT admitted FROM tasks WHERE id = 'b'") == [(0,)]
