"""Samplers of two pools that take turns on one accelerator."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from common import streams
from common.accelerators import Function, Load, Tier, WorkDone
from common.bus import Bus, Delivery, Outgoing, Slots
from common.leases.context import ExecutorContext, Identity
from common.leases.executor import LeasedExecutor
from common.leases.history import Tally
from common.leases.locks import Locks
from common.messages import ControlTask
from tests.support.leases.executables import Paper
from tests.support.scheduler.executors import MIB, POOLS
from tests.support.waiting import at_work


class Worker(Paper):
    """Takes messages from its pool's queue while it is awake; `awake` are the pools that compute now."""

    def __init__(self, bus: Bus, pool: str, awake: list[str]) -> None:
        super().__init__(device_bytes=700 * MIB)
        self._bus, self._pool, self._awake = bus, pool, awake
        self._work: asyncio.Task[None] | None = None
        self.handled = set[int]()
        """Places of the messages in their stream: one whose acknowledgement is lost comes twice."""

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
        self.handled.add(delivery.sequence)
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
