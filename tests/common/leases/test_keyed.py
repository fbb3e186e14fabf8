"""Executors with the keys of their services, which permit no more than the tables say."""

from pathlib import Path

import pytest

from common.accelerators import ExecutorState
from common.leases import PoolClocks
from common.leases.executor import LeasedExecutor
from common.messages import ExecutorReport, PoolClock
from common.streams import CLOCKS_BUCKET, Consumer, executor_now, rollout_samples, rollout_serves, trainer_batches
from tests.support.keyed import keyed_server
from tests.support.leases.executables import ACCELERATOR, Paper, answer, begun, identity, means, order
from tests.support.waiting import at_work, eventually


@pytest.mark.parametrize(
    ("service", "queues"),
    [("rollout", [rollout_samples("tiny"), rollout_serves("tiny")]), ("trainer", [trainer_batches("tiny")])],
)
async def test_service_may_do_all_that_an_executor_does(tmp_path: Path, service: str, queues: list[Consumer]) -> None:
    async with (
        keyed_server(tmp_path / "nats") as keyed,
        await keyed.connect("scheduler") as scheduler,
        await keyed.connect(service) as bus,
    ):
        await scheduler.declare()
        me = identity("tiny", service)
        executor = LeasedExecutor(means(bus, tmp_path / "locks", "tiny", Paper(), me=me, renew_s=0.05), queues, has_siblings=True)
        async with scheduler.requests.listening(executor_now(ACCELERATOR, me.executor)) as reports, at_work(executor.run()) as running:
            await begun(scheduler)
            await order(scheduler, "tiny", 1, wake=True, service=service)
            assert (await answer(scheduler, "tiny", 1, service=service)).state is ExecutorState.AWAKE
            await order(scheduler, "tiny", 2, wake=False, service=service)
            assert (await answer(scheduler, "tiny", 2, service=service)).state is ExecutorState.PARKED
            delivery = await reports.next(60.0)
            assert delivery is not None and delivery.read(ExecutorReport).executor == me.executor
            assert not running.done()


@pytest.mark.parametrize("service", ["rollout", "env"])
async def test_service_may_read_the_clocks_of_pools(tmp_path: Path, service: str) -> None:
    async with (
        keyed_server(tmp_path / "nats") as keyed,
        await keyed.connect("scheduler") as scheduler,
        await keyed.connect(service) as bus,
    ):
        await scheduler.declare()
        clocks = PoolClocks(bus)
        await clocks.read()
        async with at_work(clocks.follow()):
            await scheduler.kv.put(CLOCKS_BUCKET, "tiny", PoolClock(parked_s=100.0))
            await eventually(lambda: bus.clock.now_s() - clocks.now_s("tiny") > 99.0)
