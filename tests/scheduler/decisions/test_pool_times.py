"""Clocks of pools, what a parked pool is admitted, and what its samplers say meanwhile."""

from common.messages import PoolClock
from scheduler_svc.decisions.sharing.oversubscription import ADJUSTMENT_S
from scheduler_svc.decisions.sharing.pool_times import PoolTimes, capacities
from scheduler_svc.decisions.sharing.shares import Capacity
from tests.scheduler.decisions.test_oversubscription import MAX_FACTOR, MIN_FACTOR, Watched

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


def test_parked_samplers_that_are_idle_do_not_raise_the_factor() -> None:
    watched = Watched()
    raised = watched.after(ADJUSTMENT_S + 1, sampled=10)
    assert MIN_FACTOR < raised < MAX_FACTOR
    for _ in range(100):
        watched.now_s += 1.0
        watched.controller.pause("tiny")
    assert watched.controller.factor("tiny") == raised
    assert watched.after(1, sampled=10) == raised, "what was observed before it was parked counts no more"
    assert watched.after(ADJUSTMENT_S, sampled=10) > raised
