"""Puts a sampler that takes turns on a shared accelerator together, for one replica."""

import asyncio
from collections.abc import Callable

from common.bus import Bus, Slots
from common.leases import Identity, LeasedExecutor, Locks, Placed, driver_memory, leased_executor, placed
from common.streams import rollout_samples, rollout_serves
from rollout_svc.adapters import Adapters
from rollout_svc.engine import Engine
from rollout_svc.parking.sampler import Sampler
from rollout_svc.service import Rollout
from rollout_svc.serving.service import Serving
from rollout_svc.settings import RolloutSettings


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


def executor_of(
    bus: Bus, settings: RolloutSettings, where: Placed, locks: Locks, sampler: Sampler, show: Callable[[bool], None], *, serves: bool
) -> LeasedExecutor:
    """`show`: as of LeasedExecutor. Raises: Fatal."""
    queues = [rollout_samples(settings.pool), *([rollout_serves(settings.pool)] if serves else [])]
    return leased_executor(bus, where, sampler, locks, queues, data_dir=settings.data_dir, show=show)
