"""Limits of tenants at their bounds: one below, at, and one above. Each takes effect while the scheduler runs."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from common import streams
from common.bus import Bus, Delivery, Outgoing
from common.limits import IN_ACCOUNT, LIMITS
from common.messages import CheckEnvironment, Event, LimitValue, PreviewTask, PruneTasks, ReplicaReport, SetTenant
from common.runtime.service import report_replica
from common.spec import parse_spec
from scheduler_svc.tenancy.limits import task_tokens
from scheduler_svc.tenancy.rates import Grant
from tests.support.paths import ROOT
from tests.support.scheduler.stages import POOLS, Stages, World, running_world, spec
from tests.support.scheduler.tenant_settings import set_tenant
from tests.support.waiting import at_work, eventually

MANY = {"group_size": 2, "groups_per_step": 50}
TWO_POOLS = {**POOLS, "idle": POOLS["tiny"]}


class Unchecked(Stages):
    """Checks of tasks whose id begins with `held` are never answered."""

    async def check(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        if not delivery.read(CheckEnvironment).task.startswith("held"):
            async for out in super().check(delivery):
                yield out


async def reasons_of(world: World, task: str, raw: dict[str, Any] | None = None) -> list[str]:
    """Reasons of the refusal of a new task."""
    return list((await world.run(task, raw, until="rejected"))["reasons"])


async def answers(world: World, event: str) -> list[dict[str, Any]]:
    """Data of the tenant's events about no task."""
    stored = [delivery.read(Event) async for delivery in world.bus.streams.stored(streams.EVENTS, streams.events("acme", "none"))]
    return [one.data for one in stored if one.event == event]


@pytest.mark.parametrize("steps", [1, 2, 3])
async def test_a_task_may_have_as_many_tokens_as_the_limit_and_no_more(bus: Bus, database_url: str, steps: int) -> None:
    raw = spec(steps=steps)
    limit = task_tokens(parse_spec(spec(steps=2)))
    async with running_world(bus, database_url, Stages(trains=False)) as world:
        await world.run("first", until="accepted")
        await set_tenant(world, "one", max_task_tokens=limit)
        if steps <= 2:
            await world.run("a", raw, until="accepted")
        else:
            [reason] = await reasons_of(world, "a", raw)
            needed = task_tokens(parse_spec(raw))
            assert reason.startswith(f"max_task_tokens: at most {limit} tokens of one task")
            assert f"{needed} more needed; give fewer steps, groups or tokens" in reason
            assert reason.endswith(f"marlaas tenants set acme --limit max_task_tokens={needed}")


async def test_tasks_that_wait_for_a_check_are_bounded_and_room_counts_at_once(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Unchecked(trains=False)) as world:
        await world.run("first", until="accepted")
        await set_tenant(world, "one", max_unchecked=2)
        for number in range(2):
            await world.submit(f"held-{number}")
        await world.rows_become("SELECT count(*) FROM tasks WHERE state = 'submitted'", [(2,)])
        [reason] = await reasons_of(world, "held-2")
        assert reason.startswith("max_unchecked: at most 2 tasks whose environments are not checked yet, 2 are used; wait until")
        await world.control("cancel", "held-0", until="cancelled")
        await world.run("b", until="accepted")
        await world.run("other", spec(tenant="globex"), until="accepted")


async def test_stored_bytes_and_adapters_stop_admission_and_new_tasks_until_there_is_room(bus: Bus, database_url: str) -> None:
    stages = Stages(trains=False, withheld=lambda group, member: group.task == "waits")
    async with running_world(bus, database_url, stages) as world:
        await world.run("first", until="accepted")
        await eventually(lambda: len(stages.batches) == 1)
        blob = "INSERT INTO stored_blobs (name, task, version, kind, bytes) VALUES"
        await world.execute(f"{blob} ('first.1', 'first', 1, 'adapter', 60), ('first.2', 'first', 1, 'checkpoint', 40)")
        cases: list[tuple[str, dict[str, Any], bool]] = [
            ("bytes-below", {"max_stored_bytes": 101, "max_adapters": None}, False),
            ("bytes-at", {"max_stored_bytes": 100, "max_adapters": None}, True),
            ("bytes-above", {"max_stored_bytes": 99, "max_adapters": None}, True),
            ("adapters-below", {"max_stored_bytes": None, "max_adapters": 2}, False),
            ("adapters-at", {"max_stored_bytes": None, "max_adapters": 1}, True),
            ("adapters-above", {"max_stored_bytes": None, "max_adapters": 0}, True),
        ]
        for request, limits, is_met in cases:
            shown = (await set_tenant(world, request, **limits))["limits"]
            assert (shown["max_stored_bytes"]["used"], shown["max_adapters"]["used"]) == (100, 1)
            if is_met:
                [reason] = await reasons_of(world, request)
                assert "free some with `marlaas delete` or `marlaas prune`" in reason
            else:
                await world.run(request, until="accepted")
                await eventually(lambda task=request: any(group.task == task for group in stages.opened))
        await set_tenant(world, "more", max_adapters=2)
        await world.run("waits", spec(algorithm=MANY), until="accepted")
        await world.rows_become("SELECT admitted FROM tasks WHERE id = 'waits'", [(48,)])  # all that there is room for
        await set_tenant(world, "fewer", max_adapters=1)
        await world.make_room(128)
        admitted = await admitted_of(world, "waits")
        await world.run("other", spec(tenant="globex"), until="accepted")
        await eventually(lambda: any(group.task == "other" for group in stages.opened))
        assert await admitted_of(world, "waits") == admitted
        await world.execute("DELETE FROM stored_blobs")
        await world.make_room(256)
        await world.rows_become("SELECT admitted FROM tasks WHERE id = 'waits'", [(100,)])


async def admitted_of(world: World, task: str) -> int:
    [(admitted,)] = await world.rows(f"SELECT admitted FROM tasks WHERE id = '{task}'")
    return int(admitted)


async def test_a_limit_in_one_pool_leaves_the_tenants_other_pools_open(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: True)
    other = ReplicaReport(replica="three", service="rollout", pool="idle", sequences=64, kv_tokens=10**6, template_variables=[])
    async with (
        running_world(bus, database_url, stages, pools=TWO_POOLS) as world,
        at_work(report_replica(bus, lambda: other)),
    ):
        await world.run("early", spec(tenant="acme", steps=1), until="accepted")
        await world.control("cancel", "early", until="cancelled")
        await set_tenant(world, "one", max_pool_sequences=6)
        await world.run("a", spec(algorithm=MANY), until="accepted")
        await world.rows_become("SELECT admitted FROM tasks WHERE id = 'a'", [(3,)])
        await world.run("b", spec(pool="idle"), until="accepted")
        await world.rows_become("SELECT admitted FROM tasks WHERE id = 'b'", [(3,)])
        await world.control("cancel", "b", until="cancelled")
        tokens = 2 * parse_spec(spec()).trajectory_tokens
        for request, groups in (("below", 5), ("at", 5), ("above", 5)):
            limit = groups * tokens + {"below": -1, "at": 0, "above": 1}[request]
            await set_tenant(world, request, max_pool_sequences=None, max_pool_tokens=limit)
            await world.make_room(64)
            await world.rows_become("SELECT admitted FROM tasks WHERE id = 'a'", [(4 if request == "below" else 5,)])
        shown = (await set_tenant(world, "show"))["limits"]
        assert shown["max_pool_tokens"]["used"] == 5 * tokens
        assert shown["max_pool_sequences"]["used"] == shown["max_sequences"]["used"] == 10


async def test_jobs_beyond_the_rate_are_refused_with_the_wait_and_taken_later(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(trains=False)) as world:
        await world.run("first", until="accepted")
        await set_tenant(world, "one", jobs_per_minute=3)
        for task in ("b", "c", "d"):
            await world.run(task, until="accepted")
        [reason] = await reasons_of(world, "e")
        assert reason.startswith("jobs_per_minute: at most 3 jobs a minute, 3 are used; send it later in ")
        assert reason.endswith(" s, or an operator raises it: marlaas tenants set acme --limit jobs_per_minute=4")
        full = "UPDATE rates SET used = 3, at = clock_timestamp() WHERE tenant = 'acme'"  # it drains by one in 20 s
        await world.execute(full)
        await world.control("cancel", "b")
        assert await world.event("b", "rejected")
        await world.execute(full)
        preview = PreviewTask(tenant="acme", request="preview", spec=spec())
        prune = PruneTasks(tenant="acme", request="prune")
        await bus.publish(Outgoing(streams.job("preview", "acme"), preview, "preview"))
        await bus.publish(Outgoing(streams.job("prune", "acme"), prune, "prune"))
        for event in ("previewed", "pruned"):

            async def is_answered(event: str = event) -> bool:
                return bool(await answers(world, event))

            await eventually(is_answered)
            [answer] = await answers(world, event)
            assert "jobs_per_minute" in str(answer["reasons"])
        await world.run("other", spec(tenant="globex"), until="accepted")
        await world.execute(full, "UPDATE rates SET at = at - interval '20 seconds' WHERE tenant = 'acme'")
        await world.run("f", until="accepted")
        assert await reasons_of(world, "g")
        await set_tenant(world, "two", jobs_per_minute=4)
        await world.run("h", until="accepted")
        await set_tenant(world, "three", jobs_per_minute=0)
        assert (await reasons_of(world, "i"))[0].startswith("jobs_per_minute: at most 0 jobs a minute, ")
        await set_tenant(world, "four", jobs_per_minute=None)
        await world.run("j", until="accepted")


def test_a_rate_says_how_long_a_sender_has_to_wait() -> None:
    assert "send it later in 20 s," in Grant(0, 3.0, 3).refusal("jobs", "acme")
    assert "3 are used; ask later in 11 s," in Grant(0, 2.55, 3).refusal("asks", "acme")
    assert "0 are used; ask later, or" in Grant(0, 0.0, 0).refusal("asks", "acme")


BOUNDS = [
    (name, value, is_valid)
    for name, kind in LIMITS.items()
    for value, is_valid in [
        (kind.lowest - 1, False),
        (kind.lowest, True),
        (kind.lowest + 1, True),
        (kind.highest - 1, True),
        (kind.highest, True),
        (kind.highest + 1, False),
        (None, name not in IN_ACCOUNT),
    ]
]


@pytest.mark.parametrize(("name", "value", "is_valid"), BOUNDS)
def test_a_value_of_a_limit_is_within_its_bounds(name: str, value: int | None, is_valid: bool) -> None:
    given: dict[str, Any] = {"tenant": "acme", "request": "r", "limits": [{"of": name, "value": value}]}
    if is_valid:
        assert SetTenant.decode(SetTenant(**given).encode()).limits == [LimitValue.model_validate({"of": name, "value": value})]
    else:
        with pytest.raises(ValidationError, match=name):
            SetTenant(**given)


@pytest.mark.parametrize("values", [{"weight": 1.0}, {"defaults": ["max_tasks"]}, {"adapters_days": 3}])
def test_only_limits_have_defaults_for_all(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="only limits have defaults"):
        SetTenant(tenant=None, request="r", **values)


async def test_the_first_defaults_are_those_of_the_code(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        [row] = await world.rows("SELECT to_jsonb(limits) - 'tenant' FROM limits")
        names: Sequence[str] = list(LIMITS)
        assert row[0] == {name: LIMITS[name].default for name in names}  # type: ignore[index]


def test_every_limit_is_in_the_docs_with_its_default() -> None:
    page = (ROOT / "docs" / "tenancy.md").read_text()
    of_http = {name for name in LIMITS if name.endswith(("requests_per_minute", "tokens_per_minute", "max_streams"))}
    assert all(f"`{name}`" in page for name in of_http)
    for name, kind in LIMITS.items():
        if name in of_http:  # their defaults are the gateway's settings
            continue
        assert f"| `{name}` | {kind.of} | {'none' if kind.default is None else format(kind.default, ',')} |" in page
