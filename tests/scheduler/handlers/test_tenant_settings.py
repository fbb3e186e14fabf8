"""Weights and limits of tenants, changed while the scheduler runs."""

from typing import Any

from common import streams
from common.bus import Bus, Outgoing
from common.messages import Event, SetTenant
from tests.conftest import eventually
from tests.scheduler.stages import Stages, World, running_world, spec

GROUPS = {"group_size": 2, "groups_per_step": 50}


async def set_tenant(world: World, request: str, tenant: str = "acme", **values: Any) -> dict[str, Any]:
    """Data of the answer."""
    message = SetTenant(tenant=tenant, request=request, **values)
    await world.bus.publish(Outgoing(streams.set_tenant(tenant), message, f"set:{request}"))
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
        expected = {"weight": 2.5, "max_tasks": 4, "max_tokens": 10**12, "priority_ceiling": None, "max_sequences": None}
        expected |= {f"{kind}_days": 0 for kind in ("adapters", "checkpoints", "batches", "events", "tasks")}
        [(used,)] = await world.rows("SELECT booked_tokens FROM tasks")
        assert answer == expected | {"request": "one", "tenant": "acme", "live_tasks": 0, "used_tokens": used}
        assert used > 0
        assert await set_tenant(world, "two", unlimited=["max_tasks"]) == answer | {"request": "two", "max_tasks": None}
        assert await set_tenant(world, "three") == answer | {"request": "three", "max_tasks": None}


async def test_a_limit_of_live_tasks_rejects_the_next_one(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(withheld=lambda group, member: True)) as world:
        await world.run("a", until="accepted")
        await set_tenant(world, "one", max_tasks=1)
        reasons = (await world.run("b", until="rejected"))["reasons"]
        assert reasons == ["tenant: 'acme' has 1 tasks that have not ended, and may have 1"]
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
        await set_tenant(world, "two", unlimited=["priority_ceiling"])
        assert await world.rows("SELECT id, priority FROM tasks ORDER BY id") == [("a", 9), ("b", 5), ("c", -2)]
