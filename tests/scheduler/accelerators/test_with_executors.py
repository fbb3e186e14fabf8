"""The leader with executors as services run them: lease, locks, reports and queues are real, only what they compute is not."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from common import streams
from common.accelerators import ExecutorState, Function, Load, Tier, WorkDone
from common.bus import Bus, Delivery, Outgoing, Slots
from common.leases.context import ExecutorContext, Identity
from common.leases.executor import LeasedExecutor
from common.leases.history import Tally
from common.leases.locks import Locks
from common.messages import ControlTask, ExecutorReport
from scheduler_svc.accelerators.deployed import Deployed
from scheduler_svc.accelerators.reports import Reports
from tests.common.leases.executables import Paper
from tests.conftest import at_work, eventually
from tests.scheduler.accelerators.executors import ACCELERATORS, MIB, POOLS, TWO_TASKS, Device, World, a_scheduler, clean


class Worker(Paper):
    """Takes messages from its pool's queue while it is awake; `awake` are the pools that compute now."""

    def __init__(self, bus: Bus, pool: str, awake: list[str]) -> None:
        super().__init__(device_bytes=700 * MIB)
        self._bus, self._pool, self._awake = bus, pool, awake
        self._work: asyncio.Task[None] | None = None
        self.handled = 0

    async def wake(self) -> None:
        self._awake.append(self._pool)
        assert len(self._awake) == 1, self._awake
        self.tier, self.load = Tier.DEVICE, Load()
        self._work = asyncio.create_task(self._bus.consume(streams.rollout_samples(self._pool), self._handle, Slots(1)))

    async def park(self, tier: Tier, drain_s: float | None) -> float:
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
            self._work = None
            self._awake.remove(self._pool)
        self.tier = tier
        return 0.0

    async def _handle(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        self.load = Load(Function.GENERATE, begun=1)
        self.handled += 1
        task = f"t{1 if self._pool == 'one' else 2}"
        self.done = WorkDone({task: self.done.by_task.get(task, 0) + 10}, self.done.busy_s + 0.01, self.done.pieces + 1)
        self.load = Load()
        return
        yield


@asynccontextmanager
async def executors(bus: Bus, folder: Path) -> AsyncGenerator[dict[str, Worker]]:
    """Samplers of both pools."""
    awake: list[str] = []
    workers = {pool: Worker(bus, pool, awake) for pool in POOLS}
    async with AsyncExitStack() as stack:
        for pool, worker in workers.items():
            me = Identity("a", "rollout", pool, f"replica-{pool}")
            means = ExecutorContext(bus, me, worker, Locks(folder, me.executor), Tally(worker), budget_bytes=2**30)
            executor = LeasedExecutor(means, [streams.rollout_samples(pool)], has_siblings=False)
            await stack.enter_async_context(at_work(executor.run()))
        yield workers


async def send(bus: Bus, pool: str, first: int, count: int) -> None:
    for number in range(first, first + count):
        message = ControlTask(task=f"t{number}", tenant="t")
        await bus.publish(Outgoing(streams.sample(pool, f"t{number}", "0-0"), message, f"prompt:{pool}:{number}"))


async def test_work_of_both_pools_is_done_one_pool_at_a_time(bus: Bus, database_url: str, tmp_path: Path) -> None:
    async with a_scheduler(bus, database_url) as (scheduler, database, lead), executors(bus, tmp_path / "locks") as workers:
        world = World(bus, database, scheduler, lead, Device(), {})
        await world.execute(*TWO_TASKS)
        for number in range(3):
            await send(bus, "one", 10 * number, 2)
            await send(bus, "two", 10 * number, 2)
            await eventually(lambda number=number: all(one.handled == 2 * number + 2 for one in workers.values()), 60)
        counts = "SELECT executor, count(*) >= 2, bool_and(awake_at IS NOT NULL) FROM slices GROUP BY 1 ORDER BY 1"
        await world.becomes(counts, [("rollout-one", True, True), ("rollout-two", True, True)])  # work may end before the answer is read
        await world.becomes("SELECT count(*) FROM slices WHERE ended = 'switched' AND booked_at IS NULL", [(0,)])
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
