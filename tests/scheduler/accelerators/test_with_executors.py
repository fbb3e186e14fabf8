"""The leader with executors as services run them: lease, locks, reports and queues are real, only what they compute is not."""

from pathlib import Path

from common.accelerators import ExecutorState, Tier
from common.bus import Bus, Delivery
from common.messages import ExecutorReport
from scheduler_svc.accelerators.deployed import Deployed
from scheduler_svc.accelerators.reports import Reports
from tests.scheduler.accelerators.pool_workers import executors, send
from tests.support.scheduler.executors import ACCELERATORS, POOLS, TWO_TASKS, Device, World, a_scheduler, clean
from tests.support.waiting import eventually


async def test_work_of_both_pools_is_done_one_pool_at_a_time(bus: Bus, database_url: str, tmp_path: Path) -> None:
    async with a_scheduler(bus, database_url) as (scheduler, database, lead), executors(bus, tmp_path / "locks") as workers:
        world = World(bus, database, scheduler, lead, Device(), {})
        await world.execute(*TWO_TASKS)
        for number in range(3):
            await send(bus, "one", 10 * number, 2)
            await send(bus, "two", 10 * number, 2)
            await eventually(lambda number=number: all(len(one.handled) == 2 * number + 2 for one in workers.values()))
        counts = "SELECT executor, count(*) >= 2, bool_and(awake_at IS NOT NULL) FROM slices GROUP BY 1 ORDER BY 1"
        # work may end before the answer is read
        await world.rows_become(counts, [("rollout-one", True, True), ("rollout-two", True, True)])
        await world.rows_become("SELECT count(*) FROM slices WHERE ended = 'switched' AND booked_at IS NULL", [(0,)])
        assert await world.rows("SELECT DISTINCT task FROM slice_shares ORDER BY 1") == [("t1",), ("t2",)]
        await clean(world)


def test_report_of_another_pool_or_from_the_future_is_refused() -> None:
    reports, key = Reports(Deployed.of(ACCELERATORS, POOLS), 100.0), ("a", "rollout-two")
    true = ExecutorReport(
        accelerator="a",
        executor="rollout-two",
        pool="two",
        replica="r",
        epoch=0,
        tier=Tier.NONE,
        state=ExecutorState.COLD,
        device_bytes=1,
        host_bytes=1,
        budget_bytes=2,
        at_s=100.0,
    )

    def take(report: ExecutorReport, now_s: float) -> bool:
        return reports.take(Delivery("leases.now.a.rollout-two", {}, report.encode(), 0, 0), now_s)

    for lie in ({"pool": "one"}, {"executor": "rollout-one", "pool": "one"}, {"at_s": 106.0}, {"ready": -1}, {"left_s": float("inf")}):
        assert not take(true.model_copy(update=lie), 100.0), lie
    assert reports.newest(key, 100.0) is None
    assert take(true, 100.0)
    assert not take(true.model_copy(update={"at_s": 99.0}), 100.0)
    assert take(true.model_copy(update={"at_s": 99.0, "replica": "s"}), 100.0)  # a new process
    assert not reports.is_gone(key, 103.0)
    assert reports.is_gone(key, 103.1)
    reports.excuse(103.1)
    assert not reports.is_gone(key, 106.0)
