"""Clocks of pools stand while the pool's sampler is parked."""

from common.bus import Bus
from common.leases import PoolClocks
from common.messages import PoolClock
from common.streams import CLOCKS_BUCKET
from tests.support.waiting import at_work, eventually


async def test_pool_that_was_never_parked_shows_natss_time(bus: Bus) -> None:
    before_s = bus.clock.now_s()
    assert before_s <= PoolClocks(bus).now_s("one") <= bus.clock.now_s()


async def test_clocks_are_read_before_anything_is_compared_with_them(bus: Bus) -> None:
    await bus.kv.put(CLOCKS_BUCKET, "one", PoolClock(parked_s=50.0))
    await bus.kv.put(CLOCKS_BUCKET, "two", PoolClock(parked_s=7.0))
    clocks = PoolClocks(bus)
    await clocks.read()
    behind_s = {pool: bus.clock.now_s() - clocks.now_s(pool) for pool in ("one", "two", "three")}
    assert {pool: round(seconds) for pool, seconds in behind_s.items()} == {"one": 50, "two": 7, "three": 0}


async def test_clock_stands_while_the_pool_is_parked_and_is_behind_afterwards(bus: Bus) -> None:
    clocks, began_s = PoolClocks(bus), bus.clock.now_s()
    async with at_work(clocks.follow()):
        await bus.kv.put(CLOCKS_BUCKET, "one", PoolClock(parked_s=5.0, parked_since_s=began_s))
        await eventually(lambda: clocks.now_s("one") < bus.clock.now_s() - 4.0)
        first_s, second_s = clocks.now_s("one"), clocks.now_s("one")
        assert abs(first_s - (began_s - 5.0)) < 1e-6 and abs(second_s - first_s) < 1e-6
        assert clocks.now_s("two") > began_s
        await bus.kv.put(CLOCKS_BUCKET, "one", PoolClock(parked_s=7.0))
        await eventually(lambda: clocks.now_s("one") != first_s)
        assert 7.0 - 0.1 < bus.clock.now_s() - clocks.now_s("one") < 7.0 + 0.1
        await bus.kv.delete(CLOCKS_BUCKET, "one")
        await eventually(lambda: bus.clock.now_s() - clocks.now_s("one") < 1.0)
