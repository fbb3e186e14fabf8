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

IN_USE_WITHIN_S, LEASE_TTL_S = 30.0, 90.0
"""The second is longer than in a deployment, 15 s, of which a busy machine takes as much until the accelerator is in use."""
OPEN = "SELECT executor, awake_at IS NOT NULL FROM slices WHERE ended_at IS NULL"


@asynccontextmanager
async def samplers(bus: Bus, nats_url: str, folder: Path) -> AsyncGenerator[dict[str, BaseProcess]]:
    """One process for each pool; only one fits on the device."""
    running: dict[str, BaseProcess] = {}
    try:
        for pool in ("one", "two"):
            queues = (streams.rollout_samples(pool),)
            start = Start(nats_url, folder, pool, queues=queues, device_bytes=700 * MIB, budget_bytes=1024 * MIB, renew_s=RENEW_S)
            running[pool] = started(start)
            await eventually(lambda pool=pool: answers(bus, pool))
        yield running
    finally:
        for process in running.values():
            process.kill()
            process.join()


async def test_accelerator_of_a_killed_holder_is_in_use_long_before_its_lease_expires(
    bus: Bus, nats_url: str, database_url: str, tmp_path: Path
) -> None:
    config = (await bus.blobs_context().stream_info(f"KV_{streams.LEASES_BUCKET}")).config
    await bus.blobs_context().update_stream(config.evolve(max_age=LEASE_TTL_S))
    async with samplers(bus, nats_url, tmp_path) as running, a_scheduler(bus, database_url) as (scheduler, database, lead):
        world = World(bus, database, scheduler, lead, Device(), {})
        await world.execute(*TWO_TASKS)
        await send(bus, "one", 0, 1)
        await eventually(lambda: "rollout-one" in holders(tmp_path).memory)
        await world.rows_become(OPEN, [("rollout-one", True)])
        await send(bus, "two", 0, 1)
        await asyncio.to_thread(_kill, running["one"])
        killed_s = time.monotonic()
        await eventually(lambda: holders(tmp_path).computing and "rollout-two" in holders(tmp_path).memory)
        took_s = time.monotonic() - killed_s
        assert took_s < IN_USE_WITHIN_S, f"in use again after {took_s:.2f} s"
        await world.rows_become(OPEN, [("rollout-two", True)])
        assert await world.rows("SELECT DISTINCT ended FROM slices WHERE executor = 'rollout-one'") == [("died",)]
        await clean(world)


def _kill(process: BaseProcess) -> None:
    process.kill()
    process.join()
