"""What clients see of accelerators that a real scheduler leads, and what operators order of them by a job."""

from common.accelerators import ExecutorState, Tier
from common.bus import Bus
from common.client_api.asking import Door
from common.client_api.deployment import Accelerators
from common.leases import PoolClocks
from tests.support.scheduler.executors import clean, running_world
from tests.support.waiting import at_work, eventually


async def test_clients_see_slices_and_operators_park_and_wake_pools(bus: Bus, nats_url: str, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        one, two = await world.with_two_tasks("rollout-one", "rollout-two")
        operator, acme = (Accelerators(Door(bus, nats_url, tenant)) for tenant in (None, "acme"))
        clocks = PoolClocks(bus)
        async with at_work(clocks.follow()):
            await one.wakes_for(3)
            await one.works(t1=30)
            await two.wakes_for(1)
            await two.works(t2=7)

            async def booked() -> bool:
                found = await operator.slices()
                return len(found) == 2 and found[1].busy_ms is not None

            await eventually(booked)
            newest, oldest = await operator.slices()
            assert (oldest.executor, oldest.ended, newest.executor, newest.ended) == ("rollout-one", "switched", "rollout-two", None)
            assert [share.task for share in oldest.shares] == ["t1"]
            assert sum(share.ms for share in oldest.shares) == round(1000 * ((oldest.ended_s or 0) - oldest.ordered_s))
            assert [each.epoch for each in await acme.slices()] == [oldest.epoch], "the other's is open, and of another tenant"
            shown = {each.executor: each for each in await operator.executors()}
            assert (shown["rollout-two"].is_holder, shown["rollout-one"].is_holder) == (True, False)
            parked = shown["rollout-one"]
            assert (parked.tier, parked.is_measured) == (Tier.HOST, False) and (parked.wake_s or 0) > 0, "it never came from there"
            assert {move.executor for move in await operator.moves()} >= {"rollout-one"}

            await eventually(lambda: bus.clock.now_s() - clocks.now_s("one") > 0.0)
            stands_s = clocks.now_s("one")
            assert (await operator.order("two", "drain", service="rollout")) == ["a/rollout-two"]
            await eventually(lambda: two.state is ExecutorState.PARKED)
            assert two.orders[-1].drain_s is None
            assert clocks.now_s("one") == stands_s, "it was not woken meanwhile"
            await operator.order("one", "wake", service="rollout")
            await one.wakes()
            await eventually(lambda: clocks.now_s("one") > stands_s)
            assert [each.held for each in await operator.executors("one")] == [None, None]
            await operator.order("two", "release")
            await two.wakes_for(1)
        await clean(world)
