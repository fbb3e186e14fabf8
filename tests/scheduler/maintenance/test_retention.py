"""Retention by the days of a tenant, with a clock that is moved; real NATS and PostgreSQL."""

from pathlib import Path

from common import streams
from common.bus import Bus
from tests.support.scheduler.canaries import everything_published, in_streams, in_tables, planted, planting_world
from tests.support.scheduler.finished import clean
from tests.support.scheduler.retention import at_day, kinds
from tests.support.scheduler.stages import World, spec
from tests.support.scheduler.tenant_settings import set_tenant
from tests.support.waiting import eventually


async def swept(world: World) -> None:
    """Wait until the doctor finds nothing, once members that were scored after the last step are deleted."""
    await world.scheduler._collector.sweep()  # pyright: ignore[reportPrivateUsage]
    await clean(world)


async def expiring(world: World, task: str) -> list[object]:
    await everything_published(world)
    return [data["what"] for data in await world.events(task, "expiring")]


async def test_each_kind_goes_after_its_days_and_is_announced_a_day_before(
    bus: Bus, database_url: str, nats_folder: Path, tmp_path: Path
) -> None:
    async with planting_world(bus, database_url, tmp_path, clean=("other",)) as world:
        await world.run("a", planted())
        await world.run("other", spec(tenant="globex", keep={"batches": 2}))
        await set_tenant(world, "one", adapters_days=10, checkpoints_days=3, batches_days=3, events_days=20, tasks_days=30)
        assert await kinds(world, "a") == {"adapter", "checkpoint", "batch"}
        await at_day(world, 1.9)
        assert await expiring(world, "a") == []
        await at_day(world, 2.1)
        assert await expiring(world, "a") == ["batches", "checkpoints"]
        await at_day(world, 3.05)
        assert await kinds(world, "a") == {"adapter", "checkpoint", "batch"}
        await at_day(world, 3.15)
        assert await kinds(world, "a") == {"adapter"}
        await swept(world)
        await at_day(world, 9.1)
        await at_day(world, 10.2)
        assert await kinds(world, "a") == set()
        assert await expiring(world, "a") == ["batches", "checkpoints", "adapters"]
        reasons = (await world.run("late", spec(start={"task": "a"}), until="rejected"))["reasons"]
        assert "is no longer stored" in str(reasons)
        await at_day(world, 19.1)
        await at_day(world, 20.2)
        assert await bus.streams.subjects(streams.EVENTS, "events.*.a") == {}
        assert await world.rows("SELECT id FROM events WHERE task = 'a'") == []
        await at_day(world, 29.1)
        await at_day(world, 30.2)
        await world.event("a", "deleted")
        assert await in_tables(world) == set()
        await eventually(lambda: not in_streams(nats_folder), 60)
        assert await kinds(world, "other") == {"adapter", "checkpoint", "batch"}
        await swept(world)


async def test_a_shared_adapter_stays_until_its_heir_has_gone(bus: Bus, database_url: str, tmp_path: Path) -> None:
    async with planting_world(bus, database_url, tmp_path, clean=("a", "heir")) as world:
        await world.run("a", spec())
        await world.run("heir", spec(start={"task": "a"}))
        await set_tenant(world, "one", adapters_days=2, tasks_days=5)
        await at_day(world, 1.1)
        await at_day(world, 2.2)
        assert (await kinds(world, "a"), await kinds(world, "heir")) == ({"adapter", "checkpoint"}, {"checkpoint"})
        await swept(world)
        await at_day(world, 4.1)
        await at_day(world, 5.2)
        await world.rows_become("SELECT id FROM deleted_tasks WHERE freed_bytes IS NOT NULL ORDER BY id", [("a",), ("heir",)])
        assert (await kinds(world, "a"), await kinds(world, "heir")) == (set(), set())


async def test_raised_days_take_back_an_announcement(bus: Bus, database_url: str, tmp_path: Path) -> None:
    async with planting_world(bus, database_url, tmp_path, clean=("a",)) as world:
        await world.run("a", spec())
        await set_tenant(world, "one", tasks_days=2)
        await at_day(world, 1.1)
        assert await expiring(world, "a") == ["tasks"]
        await set_tenant(world, "two", tasks_days=0)
        await at_day(world, 50)
        assert await world.rows("SELECT id, expiring FROM tasks") == [("a", {})]
