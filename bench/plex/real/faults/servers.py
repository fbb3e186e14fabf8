"""Faults of NATS, PostgreSQL and the scheduler. Each ends with the accelerator in use, by any executor."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psutil

from bench.harness.services import BenchError
from bench.plex.real.faults.points import TO_POINT_S
from bench.plex.real.faults.scene import Scene, until
from common.messages import PoolVerb
from marlaas.client import NoAnswer

ORDERED_S = 10.0
"""Maximum time of an order before it is repeated: it is harmless when it is done twice."""
PARKED_S = 3.0
"""Time in which a slice must have ended that an operator has ended."""


async def silent(scene: Scene, server: str, seconds: float) -> dict[str, Any]:
    """The server answers nothing for so long: its connections stay open."""
    async with suspended(scene, server, seconds):
        pass
    return await _recovered(scene, time.time())


async def kill(scene: Scene, server: str) -> dict[str, Any]:
    """The stack's supervisor starts it again."""
    process = scene.process(server)
    process.kill()
    return await _recovered(scene, await scene.death(process))


@asynccontextmanager
async def suspended(scene: Scene, server: str, seconds: float) -> AsyncGenerator[None]:
    """The server's processes are stopped for so long, and inside the block."""
    family = scene.family(server)
    try:
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.suspend()
        await asyncio.sleep(seconds)
        yield
    finally:
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.resume()


async def kill_scheduler(scene: Scene, point: str) -> dict[str, Any]:
    """The scheduler dies at a decision. Where that is a slice's end without a next one, an operator's order to park brings it about."""
    process, began_s = scene.process("scheduler"), time.time()
    scene.arm("scheduler", f"{point}:1")
    if point.endswith("_end"):
        await _end_slices(scene, process)
    died_s = await scene.death(process, TO_POINT_S)
    found = (await scene.in_use(died_s)).described()
    await scene.ready()
    return found | {"to_point_s": round(died_s - began_s, 2)}


async def _end_slices(scene: Scene, scheduler: psutil.Process) -> None:
    """Park the holder's pool until the scheduler has died of it; the holder may change before the order is read."""
    while scheduler.is_running():
        pool = await _held_pool(scene)
        try:
            await _order(scene, pool, "park")
            with suppress(BenchError):
                await scene.death(scheduler, PARKED_S)
        finally:
            await _order(scene, pool, "release")


async def _recovered(scene: Scene, ended_s: float) -> dict[str, Any]:
    found = (await scene.in_use(ended_s, again=False)).described()
    await scene.ready()
    return found


async def _held_pool(scene: Scene) -> str:
    async def look() -> bool:
        return scene.holder is not None

    await until(look, "an executor holds the accelerator")
    return str(scene.holder).partition("-")[2]


async def _order(scene: Scene, pool: str, verb: PoolVerb) -> None:
    """Repeated until a scheduler has done it."""
    while True:
        with suppress(NoAnswer, TimeoutError):
            async with asyncio.timeout(ORDERED_S):
                await scene.client.accelerators.order(pool, verb)
                return
