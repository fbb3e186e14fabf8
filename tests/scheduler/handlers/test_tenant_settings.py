"""Weights and limits of tenants, changed while the scheduler runs."""

from typing import Any

from common import streams
from common.bus import Bus, Outgoing
from common.limits import LIMITS
from common.messages import Event, LimitValue, SetTenant
from tests.conftest import eventually
from tests.scheduler.stages import Stages, World, running_world, spec

GROUPS = {"group_size": 2, "groups_per_step": 50}


async def set_tenant(world: World, request: str, tenant: str = "acme", **values: Any) -> dict[str, Any]:
    """Data of the answer."""
    limits = [LimitValue(of=name, value=values.pop(name)) for name in LIMITS if name in values]
    message = SetTenant(tenant=None if tenant == streams.EVERY_TENANT else tenant, request=request, limits=limits, **values)
    await world.bus.publish(Outgoing(streams.job("set-tenant", tenant), message, f"set:{request}"))
    async for delivery in world.bus.streams.follow(streams.EVENTS, streams.events(tenant, "none")):
        event = delivery.read(Event)
        if event.event == "tenant" and event.data["request"] == request:
            return event.data
    raise AssertionError(request)


async def test_limits_are_set_shown_and_removed(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        assert (await set_tenant(world, "early"))["reasons"] == ["tenant: no tenant 'acme'; there is one from its first task on"]
        await world.run("a")
        answer = await set_tenant(world, "one", weight=2.5, max_tasks=4, max_tokens=10**12)
        settings = {"weight": 2.5, "tenant": "acme", "request": "one"}
        settings |= {f"{kind}_days": 0 for kind in ("adapters", "checkpoints", "batches", "events", "tasks")}
        limits = answer.pop("limits")
        assert answer == settings
        [(used,)] = await world.rows("SELECT booked_tokens FROM tasks")
        assert used > 0
        assert set(limits) == set(LIMITS)
        assert limits["max_tasks"] == {"value": 4, "default": None, "used": 0}
        assert limits["max_tokens"] == {"value": 10**12, "default": None, "used": used}
        assert limits["max_adapters"] == {"value": None, "default": None, "used": 3}
        assert limits["jobs_per_minute"] == {"value": 6_000, "default": 6_000, "used": 0}
        removed = (await set_tenant(world, "two", max_tasks=None, jobs_per_minute=None))["limits"]
        assert removed["max_tasks"] == {"value": None, "default": None, "used": 0}
        assert removed["jobs_per_minute"] == {"value": None, "default": 6_000, "used": 0}
        again = (await set_tenant(world, "three"))["limits"]
        stored = [each["max_stored_bytes"].pop("used") for each in (removed, again)]
        assert again == removed
        assert 0 < stored[1] <= stored[0], "a checkpoint may be deleted between the two"


async def test_a_default_holds_for_all_tenants_without_a_value_of_their_own(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(withheld=lambda group, member: True)) as world:
        for tenant in ("acme", "globex"):
            await world.run(f"{tenant}-a", spec(tenant=tenant), until="accepted")
        assert (await set_tenant(world, "one", "_all", max_tasks=1))["limits"]["max_tasks"] == {"value": 1, "default": 1, "used": None}
        await set_tenant(world, "two", max_tasks=2)
        await world.run("b", until="accepted")
        await world.run("c", spec(tenant="globex"), until="rejected")
        answer = await set_tenant(world, "three", defaults=["max_tasks"])
        assert answer["limits"]["max_tasks"] == {"value": 1, "default": 1, "used": 2}
        await set_tenant(world, "four", "_all", max_tasks=None)
        await world.run("d", spec(tenant="globex"), until="accepted")


async def test_a_limit_of_live_tasks_rejects_the_next_one(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(withheld=lambda group, member: True)) as world:
        await world.run("a", until="accepted")
        await set_tenant(world, "one", max_tasks=1)
        reasons = (await world.run("b", until="rejected"))["reasons"]
        way_out = "cancel one, or wait until one ends, or an operator raises it: marlaas tenants set acme --limit max_tasks=2"
        assert reasons == [f"max_tasks: at most 1 tasks that have not ended, 1 are used; {way_out}"]
        await world.run("other", spec(tenant="globex"), until="accepted")
        await world.control("cancel", "a", until="cancelled")
        await world.run("c", until="accepted")


async def test_a_limit_of_sequences_leaves_the_rest_to_others_and_a_raise_counts_at_once(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: True)
    async with running_world(bus, database_url, stages, sequences=1) as world:
        await world.run("a", spec(algorithm=GROUPS), until="accepted")
        await world.run("b", spec(tenant="globex", algorithm=GROUPS), until="accepted")
        await set_tenant(world, "one", max_sequences=3)
        await world.make_room(8)  # 12 in flight, by oversubscription
        await eventually(lambda: len(stages.opened) == 6)
        assert sum(group.tenant == "acme" for group in stages.opened) == 1
        await set_tenant(world, "two", max_sequences=6)
        await world.make_room(16)
        await eventually(lambda: len(stages.opened) == 12)
        assert sum(group.tenant == "acme" for group in stages.opened) == 3


async def test_nothing_is_admitted_beyond_the_maximum_of_tokens_until_it_is_raised(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.run("a")
        await set_tenant(world, "one", max_tokens=1)
        await world.run("b", until="accepted")
        await world.run("c", spec(tenant="globex"))
        assert await world.rows("SELECT admitted FROM tasks WHERE id = 'b'") == [(0,)]
        await set_tenant(world, "two", max_tokens=10**9)
        await world.event("b", "finished")


async def test_a_priority_ceiling_holds_for_tasks_that_run_and_for_later_ones(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(withheld=lambda group, member: True)) as world:
        await world.run("a", spec(priority=9), until="accepted")
        await set_tenant(world, "one", priority_ceiling=3)
        await world.run("b", spec(priority=5), until="accepted")
        await world.run("c", spec(priority=-2), until="accepted")
        assert await world.rows("SELECT id, priority FROM tasks ORDER BY id") == [("a", 3), ("b", 3), ("c", -2)]
        await set_tenant(world, "two", priority_ceiling=None)
        assert await world.rows("SELECT id, priority FROM tasks ORDER BY id") == [("a", 9), ("b", 5), ("c", -2)]
