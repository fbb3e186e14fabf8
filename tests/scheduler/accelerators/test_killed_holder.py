"""A holder's process is killed: how long its accelerator is idle. Processes, locks, lease and leader are real."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

from common import streams
from common.bus import Bus
from common.leases.context import RENEW_S
from common.leases.locks import holders
from tests.scheduler.accelerators.pool_workers import send
from tests.support.leases.executables import answers
from tests.support.leases.process import Start, started
from tests.support.scheduler.executors import MIB, TWO_TASKS, Device, World, a_scheduler, clean
from tests.support.waiting import eventually

IN_USE_WITHIN_S = 8.0
"""Far less than what is left of a lease when its holder dies, 12 to 15 s."""


@asynccontextmanager
async def samplers(bus: Bus, nats_url: str, folder: Path) -> AsyncGenerator[dict[str, BaseProcess]]:
    """One process for each pool; only one fits on the device."""
    running: dict[str, BaseProcess] = {}
    try:
        for pool in ("one", "two"):
            queues = (streams.rollout_samples(pool),)
            start = Start(nats_url, folder, pool, queues=queues, device_bytes=700 * MIB, budget_bytes=1024 * MIB, renew_s=RENEW_S)
            running[pool] = started(start)
            await eventually(lambda pool=pool: answers(bus, pool), 60)
        yield running
    finally:
        for process in running.values():
            process.kill()
            process.join()


async def test_accelerator_of_a_killed_holder_is_in_use_long_before_its_lease_expires(
    bus: Bus, nats_url: str, database_url: str, tmp_path: Path
) -> None:
    async with samplers(bus, nats_url, tmp_path) as running, a_scheduler(bus, database_url) as (scheduler, database, lead):
        world = World(bus, database, scheduler, lead, Device(), {})
        await world.execute(*TWO_TASKS)
        await send(bus, "one", 0, 1)
        await eventually(lambda: "rollout-one" in holders(tmp_path).memory, 60)
        await world.rows_become("SELECT executor, awake_at IS NOT NULL FROM slices", [("rollout-one", True)])
        await send(bus, "two", 0, 1)
        await asyncio.to_thread(_kill, running["one"])
        killed_s = time.monotonic()
        await eventually(lambda: holders(tmp_path).computing and "rollout-two" in holders(tmp_path).memory, 60)
        took_s = time.monotonic() - killed_s
        assert took_s < IN_USE_WITHIN_S, f"in use again after {took_s:.2f} s"
        await world.rows_become("SELECT executor, ended FROM slices ORDER BY epoch", [("rollout-one", "died"), ("rollout-two", None)])
        await clean(world)


def _kill(process: BaseProcess) -> None:
    process.kill()
    process.join()
