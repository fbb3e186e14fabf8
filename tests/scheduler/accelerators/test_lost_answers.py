"""The open slice ends where its executor's reports say that it computes no more, or has woken, and its answer was lost."""

import asyncio

import pytest

from common import streams
from common.accelerators import ExecutorState, Tier
from common.bus import Bus
from tests.conftest import eventually
from tests.scheduler.accelerators.executors import SLICES, TWO_TASKS, Executor, clean, running_world

ANEW: list[tuple[object, ...]] = [("rollout-one", "first", "died"), ("rollout-one", "first", None)]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_svc.accelerators.leader.STOPPED_S", 0.5)
    monkeypatch.setattr("scheduler_svc.accelerators.leader.IGNORED_S", 1.0)


async def test_slice_of_a_process_that_knows_no_order_ends(bus: Bus, database_url: str) -> None:
    """As after NATS was emptied, or lost the order by its age: what the new process says of itself has no epoch."""
    async with running_world(bus, database_url) as world:
        one, _ = await world.one_awake()
        await world.kill(one.name)
        await bus.blobs_context().purge_stream(streams.LEASES.name)
        world.begin(Executor(bus, world.device, "rollout", "one", replica="r2", ready=1, ready_since_s=1.0))
        await world.executors["rollout-one"].wakes()
        await world.becomes(SLICES, ANEW)
        await clean(world)


async def test_slice_whose_last_answer_was_lost_ends(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        one, _ = await world.one_awake()
        one.state, one.tier, one.losses = ExecutorState.PARKED, Tier.HOST, 1
        world.device.free(one.name)
        await one.answer(one.epoch, one.state, Tier.DEVICE, failure="its lease was not confirmed")
        await one.wakes()
        await world.becomes(SLICES, ANEW)
        await clean(world)


async def test_slice_whose_first_answer_was_lost_ends_and_its_executor_is_not_faulty(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        await world.execute(*TWO_TASKS)
        one = world.executors["rollout-one"]
        one.losses = 1
        await one.has_work(1)
        await world.becomes(SLICES, ANEW)
        await one.wakes()
        assert [order.wake for order in one.orders] == [True, False, True]
        assert await world.rows("SELECT count(*) FROM executors WHERE faults > 0") == [(0,)]
        await clean(world)


async def test_reports_from_before_it_woke_end_no_slice(bus: Bus, database_url: str) -> None:
    """As those of the process before, which came late."""
    async with running_world(bus, database_url) as world:
        one, before_s = world.executors["rollout-one"], bus.clock.now_s()
        await world.one_awake()
        one.is_mute = True
        for _ in range(8):  # for longer than it may say so after it woke
            late = one.report(replica="r0", state=ExecutorState.COLD, at_s=before_s)
            await bus.requests.tell(streams.executor_now("a", one.name), late)
            await asyncio.sleep(0.2)
        assert await world.rows(SLICES) == [("rollout-one", "first", None)]


async def test_executor_that_drains_for_long_before_it_wakes_ignores_nothing(bus: Bus, database_url: str) -> None:
    """It was ordered to wake while it parked, and does that first."""
    async with running_world(bus, database_url) as world:
        one, _ = await world.one_awake()
        one.drain_s = 2.5
        await world.execute("UPDATE executors SET held = 'park' WHERE id = 'rollout-one'")
        await eventually(lambda: one.state is ExecutorState.PARKING)
        await world.execute("UPDATE executors SET held = NULL WHERE id = 'rollout-one'")
        await world.becomes(SLICES, [("rollout-one", "first", "held"), ("rollout-one", "first", None)])
        await eventually(lambda: one.is_awake and one.orders[-1].wake)
        await world.becomes(SLICES, [("rollout-one", "first", "held"), ("rollout-one", "first", None)])
        assert await world.rows("SELECT count(*) FROM executors WHERE faults > 0") == [(0,)]
        await clean(world)
