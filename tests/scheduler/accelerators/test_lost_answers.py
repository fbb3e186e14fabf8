"""Where an executor's answer was lost, its reports count: the open slice ends when it computes no more, and goes on when it has woken."""

import asyncio

import pytest

from common import streams
from common.accelerators import ExecutorState, Tier
from common.bus import Bus
from tests.support.scheduler.executors import SLICES, Executor, clean, running_world
from tests.support.waiting import eventually

ANEW: list[tuple[object, ...]] = [("rollout-one", "first", "died"), ("rollout-one", "first", None)]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_svc.accelerators.conditions.STOPPED_S", 0.5)


async def test_slice_of_a_process_that_knows_no_order_ends(bus: Bus, database_url: str) -> None:
    """As after NATS was emptied, or lost the order by its age: what the new process says of itself has no epoch."""
    async with running_world(bus, database_url) as world:
        one, _ = await world.one_awake()
        await world.kill(one.name)
        await bus.blobs_context().purge_stream(streams.LEASES.name)
        world.begin(Executor(bus, world.device, "rollout", "one", replica="r2", ready=1, ready_since_s=1.0))
        await world.executors["rollout-one"].wakes()
        await world.rows_become(SLICES, ANEW)
        await clean(world)


async def test_slice_whose_last_answer_was_lost_ends(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        one, _ = await world.one_awake()
        one.state, one.tier, one.losses = ExecutorState.PARKED, Tier.HOST, 1
        world.device.free(one.name)
        await one.answer(one.epoch, one.state, Tier.DEVICE, failure="its lease was not confirmed")
        await one.wakes()
        await world.rows_become(SLICES, ANEW)
        await clean(world)


async def test_slice_whose_first_answer_was_lost_goes_on(bus: Bus, database_url: str) -> None:
    """It has woken at the time of its report, and is not disturbed; how long the wake took is not known."""
    async with running_world(bus, database_url) as world:
        [one] = await world.with_two_tasks("rollout-one")
        one.losses, before_s = 1, bus.clock.now_s()
        await one.wakes_for(1)
        await world.rows_become("SELECT count(*) FROM slices WHERE awake_at IS NOT NULL", [(1,)])
        ((awake_s,),) = await world.rows("SELECT extract(epoch FROM awake_at)::float FROM slices")
        assert isinstance(awake_s, float)
        assert before_s < awake_s < bus.clock.now_s() - 0.5  # when it was reported, and not when that was believed
        assert await world.rows(SLICES) == [("rollout-one", "first", None)]
        assert await world.rows("SELECT state, tier, faults FROM executors WHERE id = 'rollout-one'") == [("awake", "device", 0)]
        assert await world.rows("SELECT count(*) FROM moves WHERE executor = 'rollout-one'") == [(0,)]
        assert [order.wake for order in one.orders] == [True]
        assert await world.rows("SELECT parked_since FROM pool_clocks WHERE pool = 'one'") == [(None,)]
        await clean(world)


async def test_answer_that_comes_after_its_report_was_believed_changes_nothing(bus: Bus, database_url: str) -> None:
    """Its clock may be ahead of the scheduler's, so that the answer looks newer than the report."""
    async with running_world(bus, database_url) as world:
        one, _ = await world.one_awake()
        ((awake_at,),) = await world.rows("SELECT awake_at FROM slices")
        epoch = one.epoch
        await one.answer(one.epoch, one.state, Tier.HOST, move_s=0.5)
        await world.rows_become("SELECT count(*) FROM moves WHERE seconds = 0.5", [(1,)])
        assert await world.rows("SELECT awake_at, ended_at FROM slices") == [(awake_at, None)]
        assert await world.rows("SELECT epoch FROM accelerators") == [(epoch,)], "nobody was ordered to park"
        await clean(world)


async def test_late_answer_that_it_woke_leaves_its_younger_slice(bus: Bus, database_url: str) -> None:
    """A cold wake lasts: its slice was held meanwhile, and after that another was ordered."""
    async with running_world(bus, database_url) as world:
        one = world.executors["rollout-one"]
        one.is_deaf = True
        await one.has_work(1)
        await world.rows_become("SELECT count(*) FROM slices WHERE ended_at IS NULL", [(1,)])
        ((first,),) = await world.rows("SELECT epoch FROM slices")
        await world.execute("UPDATE executors SET held = 'park' WHERE id = 'rollout-one'")
        await world.rows_become("SELECT ended FROM slices", [("held",)])
        await world.execute("UPDATE executors SET held = NULL")
        await world.rows_become("SELECT count(*) FROM slices WHERE ended_at IS NULL", [(1,)])
        before = await world.rows("SELECT epoch FROM accelerators")
        await one.answer(int(str(first)), ExecutorState.AWAKE, Tier.NONE, move_s=0.5)
        await world.rows_become("SELECT count(*) FROM moves WHERE seconds = 0.5", [(1,)])
        assert await world.rows("SELECT epoch FROM accelerators") == before, "it was not ordered to park"
        assert await world.rows("SELECT count(*) FROM slices WHERE ended_at IS NULL") == [(1,)]


async def test_reports_from_before_it_woke_end_no_slice(bus: Bus, database_url: str) -> None:
    """As those of the process before, which came late."""
    async with running_world(bus, database_url) as world:
        one, before_s = world.executors["rollout-one"], bus.clock.now_s()
        await world.one_awake()
        one.is_mute = True
        for _ in range(8):  # for longer than it may say so after it woke
            late = one.report(replica="r0", state=ExecutorState.COLD, at_s=before_s)
            await bus.requests.send(streams.executor_now("a", one.name), late)
            await asyncio.sleep(0.2)
        assert await world.rows(SLICES) == [("rollout-one", "first", None)]


async def test_executor_that_drains_for_long_before_it_wakes_ignores_nothing(
    bus: Bus, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was ordered to wake while it parked, and does that first."""
    async with running_world(bus, database_url) as world:
        one, _ = await world.one_awake()
        one.drain_s = 2.5
        await world.execute("UPDATE executors SET held = 'park' WHERE id = 'rollout-one'")
        await world.heard(one, ExecutorState.PARKING)
        await world.execute("UPDATE executors SET held = NULL WHERE id = 'rollout-one'")
        with monkeypatch.context() as hasty:  # until it has drained: on a busy machine its report of the wake may take longer
            hasty.setattr("scheduler_svc.accelerators.conditions.IGNORED_S", 1.0)
            await world.rows_become(SLICES, [("rollout-one", "first", "held"), ("rollout-one", "first", None)])
            await eventually(lambda: one.state is not ExecutorState.PARKING)
        await eventually(lambda: one.is_awake and one.orders[-1].wake)
        await world.rows_become(SLICES, [("rollout-one", "first", "held"), ("rollout-one", "first", None)])
        assert await world.rows("SELECT count(*) FROM executors WHERE faults > 0") == [(0,)]
        await clean(world)
