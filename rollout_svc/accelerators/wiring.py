"""Puts a sampler that takes turns on a shared accelerator together, for one replica."""

import asyncio

from common.bus import Slots
from common.homes import Queues
from common.leases import Identity, Placed, Reading, driver_memory, placed
from common.streams import rollout_samples, rollout_serves
from rollout_svc.accelerators.sampler import Sampler
from rollout_svc.adapters import Adapters
from rollout_svc.engine.engine import Engine
from rollout_svc.service import Rollout
from rollout_svc.serving.service import Serving
from rollout_svc.settings import RolloutSettings

MOVE_S = 1.0
"""Assumed cost of a turn at another sampler: its adapter is fetched, checked and loaded there, and its prefix computed again."""


def place_of(settings: RolloutSettings) -> Placed | None:
    """None for a sampler with an accelerator of its own. Raises: Fatal."""
    if not settings.accelerator:
        return None
    return placed(Identity(settings.accelerator, "rollout", settings.pool, settings.replica), settings.pools_file)


async def sampler_of(where: Placed, engine: Engine, adapters: Adapters, rollout: Rollout, slots: Slots, serving: Serving | None) -> Sampler:
    """A sampler that is parked; `slots` are those of rollouts. Raises: Fatal."""
    await adapters.stop()  # until its engine is awake
    device = where.accelerator.device
    gpu_bytes = None if where.accelerator.on_cpu else (await asyncio.to_thread(driver_memory, device)).total_bytes
    return Sampler(engine, adapters, rollout, [slots, *([serving.slots] if serving is not None else [])], serving, gpu_bytes)


def reading_of(pool: str, queues: Queues | None, *, serves: bool) -> Reading:
    """Queues of a sampler. `queues`: of turns, where its pool is on several accelerators."""
    served = [rollout_serves(pool)] if serves else []
    return Reading([rollout_samples(pool), *served]) if queues is None else Reading([*queues.own, *served], queues)
