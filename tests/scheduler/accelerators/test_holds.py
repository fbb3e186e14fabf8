"""Executors that operators hold parked or order to wake, with real PostgreSQL and NATS."""

from common.accelerators import ExecutorState, Tier
from common.bus import Bus
from scheduler_svc.base.database import Database
from tests.support.scheduler.executors import MIB, SLICES, Executor, World, clean, running_world
from tests.support.scheduler.statements import execute
from tests.support.waiting import eventually


async def test_operator_parks_an_executor_and_wakes_another(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        one, two = world.executors["rollout-one"], world.executors["trainer-two"]
        await one.wakes_for(1)
        await world.execute("UPDATE executors SET held = 'drain' WHERE id = 'rollout-one'")
        await world.rows_become(SLICES, [("rollout-one", "first", "held")])
        await eventually(lambda: one.state is ExecutorState.PARKED)
        assert (one.tier, one.orders[-1].drain_s) == (Tier.DISK, None)
        await world.execute("UPDATE executors SET held = 'wake' WHERE id = 'trainer-two'")
        await eventually(lambda: world.device.awake[-1] == two.name)  # its slice may be over at once: it has no task
        await world.rows_become("SELECT reason FROM slices WHERE executor = 'trainer-two'", [("operator",)])
        await world.rows_become("SELECT held FROM executors WHERE id = 'trainer-two'", [(None,)])
        await world.execute("UPDATE executors SET held = 'park' WHERE id = 'trainer-two'")
        await eventually(lambda: two.state is ExecutorState.PARKED)
        assert two.orders[-1].drain_s is None, "a step ends first"
        await world.execute("UPDATE executors SET held = NULL")
        await one.wakes()


async def paused_beside_another(world: World) -> tuple[Executor, Executor]:
    """The first has no slice and stays on the device, where both fit; the second is awake."""
    one, two = await world.with_two_tasks("rollout-one", "trainer-two")
    one.device_bytes = two.device_bytes = 100 * MIB
    await one.wakes_for(1)
    await one.works(t1=1)
    await two.wakes_for(1)
    await eventually(lambda: one.state is ExecutorState.PARKED)
    return one, two


async def test_held_executor_without_a_slice_leaves_the_device(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        one, two = await paused_beside_another(world)
        assert one.tier is Tier.DEVICE
        await world.execute("UPDATE executors SET held = 'park' WHERE id = 'rollout-one'")
        await eventually(lambda: one.tier is Tier.DISK)
        assert two.is_awake
        assert len(one.orders) == 3
        await clean(world)


REFUSED_ORDERS = (
    "CREATE SEQUENCE refused",
    "GRANT ALL ON SEQUENCE refused TO PUBLIC",
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('refused'); RAISE EXCEPTION 'full'; END $$",
    "CREATE TRIGGER refuse BEFORE INSERT ON outbox FOR EACH ROW WHEN (NEW.subject LIKE 'leases.order.%') EXECUTE FUNCTION refuse()",
)


async def test_order_to_leave_the_device_that_was_not_stored_is_given_again(bus: Bus, database_url: str, owner_url: str) -> None:
    async with running_world(bus, database_url) as world, await Database.connect(owner_url) as owner:
        one, _ = await paused_beside_another(world)
        await execute(owner, *REFUSED_ORDERS)
        await world.execute("UPDATE executors SET held = 'park' WHERE id = 'rollout-one'")
        await world.rows_become("SELECT is_called FROM refused", [(True,)])
        await execute(owner, "DROP TRIGGER refuse ON outbox")
        await eventually(lambda: one.tier is Tier.DISK)
