"""The leader with real PostgreSQL and NATS: slices, orders, bookings, clocks, and what it does as one of several replicas."""

import asyncio

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from common import streams
from common.accelerators import ExecutorState, Tier
from common.bus import Bus, Outgoing
from common.messages import Lease, LeaseOrder
from common.pools.pool import Serving
from scheduler_svc.base.database import SLICES_LOCK
from scheduler_svc.migrate import end_sharing
from tests.support.scheduler.executors import ACCELERATOR, POOLS, SLICES, a_scheduler, clean, clock_of, running_world
from tests.support.scheduler.stages import Stages
from tests.support.scheduler.stages import running_world as world_of_tasks
from tests.support.waiting import eventually

OF_LEADER = f"""SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = {SLICES_LOCK}
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""

AFTER_THE_DRAIN = "SELECT n.ordered_at >= s.ended_at FROM slices s JOIN slices n ON n.ended_at IS NULL WHERE s.ended_at IS NOT NULL"
"""Whether the switch to the open slice begins when the work of the one before has ended."""

# ------------------------------------------------------------------------------------------------------------- switches


async def test_slices_follow_each_other_and_are_booked_to_the_millisecond(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        one, two = await world.with_two_tasks("rollout-one", "rollout-two")
        await one.wakes_for(3)
        await two.has_work(1)
        await one.works(t1=30, t2=5)  # t2 is not a task of its pool
        await two.wakes()
        await world.rows_become(SLICES, [("rollout-one", "first", "switched"), ("rollout-two", "ratio", None)])
        await two.works(t2=7)
        await one.wakes_for(1)
        await world.rows_become("SELECT count(*) FROM slices WHERE booked_at IS NOT NULL", [(2,)])
        held = "(extract(epoch FROM s.ended_at - s.ordered_at) * 1000)::bigint"
        shares = await world.rows(
            f"SELECT h.task, h.tenant, {held} FROM slices s JOIN slice_shares h USING (accelerator, epoch) ORDER BY epoch, task"
        )
        assert [row[:2] for row in shares] == [("", None), ("t1", "acme"), ("t2", "globex")]
        ms = await world.rows(
            f"SELECT {held}, (SELECT sum(ms) FROM slice_shares h WHERE h.epoch = s.epoch) FROM slices s WHERE ended_at IS NOT NULL"
        )
        assert all(held_ms == shared for held_ms, shared in ms)
        assert await world.rows("SELECT task, kind, tenant FROM ledger ORDER BY task") == [
            ("t1", "accelerator", "acme"),
            ("t2", "accelerator", "globex"),
        ]
        assert [order.wake for order in one.orders] == [True, False, True]
        assert one.orders[1].tier is Tier.HOST  # both do not fit
        assert world.device.awake == ["rollout-one", "rollout-two", "rollout-one"]
        assert await world.rows("SELECT executor, from_tier, to_tier FROM moves ORDER BY id LIMIT 3") == [
            ("rollout-one", "none", "device"),
            ("rollout-one", "device", "host"),
            ("rollout-two", "none", "device"),
        ]
        await clean(world)


async def test_served_sampler_alone_on_its_accelerator_is_awake_without_tasks(bus: Bus, database_url: str) -> None:
    pools = {"one": POOLS["one"].model_copy(update={"on": None, "generate_on": ("a",), "serving": Serving()})}
    async with running_world(bus, database_url, pools=pools) as world:
        await eventually(lambda: world.device.awake == ["rollout-one"])
        await world.rows_become("SELECT executor, reason, ended, awake_at IS NOT NULL FROM slices", [("rollout-one", "first", None, True)])
        await asyncio.sleep(2.5)  # the leader has read all rows twice and found no task
        assert await world.rows(SLICES) == [("rollout-one", "first", None)]


async def test_trainer_is_ordered_to_park_while_its_step_runs_once_another_is_overdue(bus: Bus, database_url: str) -> None:
    """The step ends first. One that never does is the executor's own watchdog's to end, which begins with the order."""
    hasty = {"a": ACCELERATOR.model_copy(update={"max_wait_s": 0.5})}
    async with running_world(bus, database_url, accelerators=hasty) as world:
        one, two = await world.with_two_tasks("rollout-one", "trainer-two")
        two.drain_s = 0.5
        await two.wakes_for(1)
        two.begun = 1
        await two.has_work(0)
        await one.wakes_for(1)
        assert (two.orders[-1].wake, two.orders[-1].drain_s, two.state) == (False, None, ExecutorState.PARKED)
        await world.rows_become(SLICES, [("trainer-two", "first", "switched"), ("rollout-one", "overdue", None)])


async def test_time_until_running_work_has_ended_is_its_own_slices_and_not_the_next_ones_switch(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        one, two = await world.with_two_tasks("rollout-one", "rollout-two")
        one.drain_s = 1.0
        await one.wakes_for(1)
        await one.works(t1=1)
        one.busy_ms = 10**6
        await two.wakes_for(1)
        await world.rows_become("SELECT count(*) FROM slices WHERE booked_at IS NOT NULL", [(1,)])
        drained = "SELECT executor, ended_at - asked_at > interval '0.9 seconds', idle_ms FROM slices WHERE booked_at IS NOT NULL"
        assert await world.rows(drained) == [("rollout-one", True, 0)]
        await world.rows_become(AFTER_THE_DRAIN, [(True,)])
        await clean(world)


async def test_time_until_work_of_a_held_pool_has_ended_is_its_own(bus: Bus, database_url: str) -> None:
    """Else the next tenant would pay for it as a switch."""
    async with running_world(bus, database_url) as world:
        one, two = await world.one_awake()
        one.drain_s = 1.0
        await world.execute("UPDATE executors SET held = 'drain' WHERE id = 'rollout-one'")
        await world.rows_become(SLICES, [("rollout-one", "first", "held")])
        await two.wakes_for(1)
        drained = "SELECT ended_at - asked_at > interval '0.9 seconds' FROM slices WHERE ended = 'held' AND booked_at IS NOT NULL"
        await world.rows_become(drained, [(True,)])
        await world.rows_become(AFTER_THE_DRAIN, [(True,)])
        await clean(world)


async def test_clock_of_a_pool_stands_from_the_order_to_park_until_its_sampler_is_awake(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        one, two = await world.with_two_tasks("rollout-one", "trainer-two")
        await eventually(lambda: clock_of(world, "one"))
        before = await clock_of(world, "one")
        assert before is not None and before.parked_since_s is not None
        await one.wakes_for(1)

        async def goes() -> bool:
            found = await clock_of(world, "one")
            return found is not None and found.parked_since_s is None and found.parked_s > 0

        await eventually(goes)
        await two.has_work(1)
        await one.works(t1=1)
        await two.wakes()

        async def stands() -> bool:
            found = await clock_of(world, "one")
            return found is not None and found.parked_since_s is not None

        await eventually(stands)
        [(asked_s,)] = await world.rows("SELECT extract(epoch FROM asked_at)::float8 FROM slices WHERE executor = 'rollout-one'")
        found = await clock_of(world, "one")
        assert found is not None and found.parked_since_s == pytest.approx(asked_s, abs=1e-3)
        other = await clock_of(world, "two")
        assert other is not None and other.parked_since_s is not None  # its trainer computes, its sampler does not
        await clean(world)


async def test_slice_ends_when_its_pool_has_no_running_task(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        [one] = await world.with_two_tasks("rollout-one")
        await one.wakes_for(1)
        await one.works(t1=1)
        await world.rows_become(SLICES, [("rollout-one", "first", None)])
        await world.execute("UPDATE groups SET state = 'void', void_reason = 'cancelled'", "UPDATE tasks SET state = 'cancelled'")
        await world.rows_become(SLICES, [("rollout-one", "first", "finished")])
        await eventually(lambda: one.state is ExecutorState.PARKED)
        assert one.tier is Tier.DEVICE
        await world.rows_become("SELECT task FROM slice_shares", [("t1",)])


async def test_epochs_grow_beyond_those_that_nats_knows(bus: Bus, database_url: str) -> None:
    """PostgreSQL was restored: the lease and the last order of an executor are of later slices."""
    await bus.kv.put(streams.LEASES_BUCKET, "a", Lease(executor="x", replica="x", epoch=50, renewed_s=1.0))
    order = LeaseOrder(accelerator="a", executor="rollout-two", epoch=70, wake=False)
    await bus.publish(Outgoing(streams.lease_order("a", "rollout-two"), order, "old"))
    async with running_world(bus, database_url) as world:
        await world.kill("rollout-two")  # it has not begun, and tells of no order
        one = world.executors["rollout-one"]
        await one.wakes_for(1)
        assert one.epoch == 71


async def test_since_when_work_waits_is_what_its_executor_reports(bus: Bus, database_url: str) -> None:
    """And not its pool's open groups, which may all be with environments."""
    async with running_world(bus, database_url) as world:
        one, two = await world.one_awake()
        await world.execute("UPDATE executors SET held = 'park' WHERE id = 'rollout-two'")
        waits = "SELECT executor FROM pool_status WHERE waiting_since IS NOT NULL"
        assert (one.ready, await world.rows(waits)) == (1, [])
        await two.has_work(1)
        await world.rows_become(waits, [("rollout-two",)])
        since = "SELECT round(extract(epoch FROM waiting_since), 3)::float8 FROM pool_status WHERE executor = 'rollout-two'"
        assert await world.rows(since) == [(pytest.approx(two.ready_since_s, abs=0.002),)]
        await two.has_work(0)
        await world.rows_become(waits, [])


# ------------------------------------------------------------------------------------------------------------ operators


# ------------------------------------------------------------------------------------------------------------- replicas


async def test_another_replica_continues_where_the_leader_ended(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        one, two = await world.one_awake()
        async with a_scheduler(bus, database_url):
            world.lead.cancel()
            await asyncio.gather(world.lead, return_exceptions=True)
            await one.works(t1=1)
            await two.wakes_for(1)
            await world.rows_become(SLICES, [("rollout-one", "first", "switched"), ("rollout-two", "ratio", None)])
            await clean(world)


async def test_new_leader_hears_the_holder_before_it_orders_another(bus: Bus, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the holder would not be ordered to park, and the other would wait for it, until it counts as a stray."""
    monkeypatch.setattr("scheduler_svc.accelerators.snapshot.STRAY_S", 3600.0)
    async with running_world(bus, database_url) as world:
        one, two = await world.one_awake()
        one.is_mute = True
        world.lead.cancel()
        await asyncio.gather(world.lead, return_exceptions=True)
        async with a_scheduler(bus, database_url):
            await two.has_work(1)
            await world.rows_become(OF_LEADER, [(1,)])
            await asyncio.sleep(1.0)  # shorter than the silence after which it would count as gone
            one.is_mute = False
            await one.works()
            await two.wakes()


async def test_leader_whose_connection_is_lost_leads_again(bus: Bus, database_url: str) -> None:
    """As often as it is lost: a leader that fails must not end."""
    async with running_world(bus, database_url) as world:
        one, two = world.executors["rollout-one"], world.executors["rollout-two"]
        for each in (one, two):
            await world.rows_become(OF_LEADER, [(1,)])
            await world.execute(OF_LEADER.replace("count(*)", "pg_terminate_backend(pid)"))
            await each.wakes_for(1)
            await each.works()


async def test_executor_that_the_pools_file_has_no_more_is_parked_and_its_clock_goes(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        one = world.executors["rollout-one"]
        await one.wakes_for(1)
        world.lead.cancel()
        await asyncio.gather(world.lead, return_exceptions=True)
        left = {"two": POOLS["two"], "one": POOLS["one"].model_copy(update={"on": None})}
        async with a_scheduler(bus, database_url, pools=left):
            await eventually(lambda: one.state is ExecutorState.PARKED)
            await world.rows_become("SELECT ended FROM slices", [("removed",)])
            await world.rows_become("SELECT id FROM executors ORDER BY id", [("rollout-two",), ("trainer-two",)])
            assert await world.rows("SELECT count(*) FROM slices WHERE booked_at IS NULL") == [(0,)]
            assert await world.rows("SELECT DISTINCT executor FROM moves") == []
            found = await clock_of(world, "one")
            assert found is not None and found.parked_since_s is None


async def test_clock_goes_when_no_accelerator_is_shared_any_more_and_stands_when_one_is_again(
    bus: Bus, database_url: str, owner_url: str
) -> None:
    async with running_world(bus, database_url) as world:
        one = world.executors["rollout-one"]
        await one.wakes_for(1)
        world.lead.cancel()
        await asyncio.gather(world.lead, return_exceptions=True)
        with create_engine(owner_url, poolclass=NullPool).begin() as connection:
            end_sharing(connection)
        assert await world.rows("SELECT ended FROM slices") == [("removed",)]
        assert await world.rows("SELECT DISTINCT state, tier FROM executors") == [("cold", "off")]
        async with a_scheduler(bus, database_url, accelerators={}, pools={}):

            async def goes() -> bool:
                found = await clock_of(world, "two")
                return found is not None and found.parked_since_s is None and found.parked_s > 0

            await eventually(goes)
        await world.kill("rollout-one")
        async with a_scheduler(bus, database_url):
            await world.rows_become("SELECT count(*) FROM pool_clocks WHERE parked_since IS NULL", [(0,)])


# ------------------------------------------------------------------------------------------------------------- nothing


async def test_without_shared_accelerators_there_is_no_leader_no_consumer_and_no_query(bus: Bus, database_url: str) -> None:
    async with world_of_tasks(bus, database_url, Stages()) as world:
        await world.run("a")
        assert world.scheduler._leader is None
        consumers = await bus.blobs_context().consumers_info(streams.LEASES.name)
        assert consumers == []
        await world.execute("SELECT pg_stat_force_next_flush()")
        tables = "('accelerators', 'executors', 'slices', 'slice_shares', 'moves')"
        looked = await world.rows(
            f"SELECT sum(coalesce(seq_scan, 0) + coalesce(idx_scan, 0)) FROM pg_stat_user_tables WHERE relname IN {tables}"
        )
        assert looked == [(0,)]
