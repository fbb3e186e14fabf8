"""Clocks of pools, what a parked pool is admitted, and what its samplers say meanwhile."""

from common.bus import Bus
from common.homes import AWAKE, BEGUN
from common.messages import PoolClock, ReplicaReport
from common.streams import REPLICAS_BUCKET
from scheduler_svc.tenancy.decisions.shares import Capacity
from scheduler_svc.training.decisions.pool_load import PoolLoad, PoolTimes, capacities
from scheduler_svc.upkeep.replicas import ReplicaRegistry, Samplers
from tests.scheduler.decisions.watching import MAX_FACTOR, MIN_FACTOR, Watched

CLOCKS = {"parked": PoolClock(parked_s=10.0, parked_since_s=95.0), "awake": PoolClock(parked_s=30.0)}


def test_clock_stands_while_its_pool_is_parked_and_others_go() -> None:
    times = [PoolTimes(now_s, CLOCKS) for now_s in (100.0, 107.0)]
    assert [one.of("parked") for one in times] == [85.0, 85.0]
    assert [one.of("awake") for one in times] == [70.0, 77.0]
    assert [one.of("never") for one in times] == [100.0, 107.0]
    assert times[0].parked == {"parked"}


def test_parked_pool_is_admitted_what_its_next_slice_can_begin_with() -> None:
    decoded = {pool: Capacity(8, 1000) for pool in ("parked", "awake")}
    found = capacities(decoded, lambda pool: 2.5, PoolTimes(100.0, CLOCKS).parked)
    assert found == {"parked": Capacity(8, 1000), "awake": Capacity(20, 2500)}


class Sliced(Watched):
    """A pool that is awake for three of ten seconds, and is looked at every second."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = PoolClock()

    def slices(self, count: int, *, sampled: float, current: bool = True) -> float:
        """The factor after so many slices. `current`: whether samplers have reported since they woke."""
        for _ in range(count):
            for second in range(10):
                self.now_s += 1.0
                if second == 0:
                    self.clock = PoolClock(parked_s=self.clock.parked_until_s(self.now_s))
                elif second == 3:
                    self.clock = PoolClock(parked_s=self.clock.parked_s, parked_since_s=self.now_s)
                times = PoolTimes(self.now_s, {"tiny": self.clock})
                if "tiny" not in times.parked:
                    seen = PoolLoad(100, sampled, 1.0, 0.1) if current else None
                    self.controller.observe("tiny", seen, times.of("tiny"))
        return self.controller.factor("tiny")


def test_factor_follows_samplers_whose_slices_are_short() -> None:
    pool = Sliced()
    assert pool.slices(5, sampled=10) == MIN_FACTOR
    assert pool.slices(1, sampled=10) == MIN_FACTOR * 1.25, "after 15 s awake, 50 s by the wall"
    assert pool.slices(500, sampled=10) == MAX_FACTOR
    assert pool.slices(500, sampled=100) == MIN_FACTOR


def test_one_full_moment_of_any_slice_keeps_the_factor() -> None:
    pool = Sliced()
    for _ in range(40):
        pool.slices(3, sampled=10)
        assert pool.slices(1, sampled=80) == MIN_FACTOR


def test_samplers_that_have_not_reported_since_they_woke_do_not_change_the_factor() -> None:
    pool = Sliced()
    raised = pool.slices(6, sampled=10)
    assert MIN_FACTOR < raised < MAX_FACTOR
    assert pool.slices(500, sampled=0, current=False) == raised
    assert pool.slices(4, sampled=10) == raised
    assert pool.slices(1, sampled=10) > raised


async def test_load_of_samplers_is_that_of_those_that_were_awake_when_they_reported(bus: Bus) -> None:
    async def samplers(**busy: dict[str, float]) -> Samplers:
        for name, values in busy.items():
            report = ReplicaReport(replica=name, service="rollout", pool="tiny", sequences=8, kv_tokens=100, busy=values)
            await bus.kv.put(REPLICAS_BUCKET, f"rollout.{name}", report)
        registry = ReplicaRegistry(bus, lambda: None)
        await registry._read()
        return registry.samplers["tiny"]

    assert await samplers(a={"sequences": 0.0, BEGUN: 0.0, AWAKE: 0.0}) == Samplers(8, 100, 0, 0.0)
    assert await samplers(b={"sequences": 5.0, BEGUN: 5.0, AWAKE: 1.0}) == Samplers(16, 200, 8, 5.0)
    assert await samplers(c={"sequences": 1.0, BEGUN: 1.0}) == Samplers(24, 300, 8, 5.0), "one of an older version does not say"
    assert await samplers(d={"sequences": 2.0}) == Samplers(32, 400, 16, 7.0), "one that shares no accelerator"
