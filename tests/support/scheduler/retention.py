"""Retention by age: days that pass, and kinds of blobs that remain."""

import time

from common.blobs import Blobs
from tests.support.scheduler.stages import World

DAY_S = 86_400.0


async def at_day(world: World, day: float) -> None:
    """Set the bus's clock to so many days from now, whatever it reads of NATS's, and let the scheduler look."""
    world.bus.clock.now_s = lambda: time.time() + day * DAY_S
    await world.scheduler.apply_retention()


async def kinds(world: World, task: str) -> set[str]:
    return {blob.name.split(".")[2].partition("-")[0] for blob in await Blobs(world.bus).listed() if blob.name.startswith(f"{task}.")}
