"""Puts a sampler that takes turns on a shared accelerator together, for one replica."""

import asyncio
from collections.abc import Callable

from common.bus import Bus, Slots
from common.leases import Identity, LeasedExecutor, Locks, driver_memory, executor_locks, leased_executor, placed
from common.streams import rollout_samples, rollout_serves
from rollout_svc.adapters import Adapters
from rollout_svc.engine import Engine
from rollout_svc.parking.sampler import Sampler
from rollout_svc.service import Rollout
from rollout_svc.serving.service import Serving
from rollout_svc.settings import RolloutSettings


def locks_of(settings: RolloutSettings) -> Locks | None:
    """None for a sampler with an accelerator of its own. Raises: Fatal."""
    if not settings.accelerator:
        return None
    return executor_locks(_identity(settings), pools_file=settings.pools_file, accelerators_dir=settings.accelerators_dir)


async def sampler_of(
    settings: RolloutSettings, engine: Engine, adapters: Adapters, rollout: Rollout, slots: Slots, serving: Serving | None
) -> Sampler:
    """A sampler that is parked; `slots` are those of rollouts. Raises: Fatal."""
    await adapters.stop()  # until its engine is awake
    _, accelerator = placed(_identity(settings), settings.pools_file)
    gpu_bytes = None if accelerator.on_cpu else (await asyncio.to_thread(driver_memory, accelerator.device)).total_bytes
    return Sampler(engine, adapters, rollout, [slots, *([serving.slots] if serving is not None else [])], serving, gpu_bytes)


def executor_of(
    bus: Bus, settings: RolloutSettings, locks: Locks, sampler: Sampler, show: Callable[[bool], None], *, serves: bool
) -> LeasedExecutor:
    """`show`: as of LeasedExecutor. Raises: Fatal."""
    return leased_executor(
        bus,
        _identity(settings),
        sampler,
        locks,
        [rollout_samples(settings.pool), *([rollout_serves(settings.pool)] if serves else [])],
        pools_file=settings.pools_file,
        data_dir=settings.data_dir,
        show=show,
    )


def _identity(settings: RolloutSettings) -> Identity:
    return Identity(settings.accelerator, "rollout", settings.pool, settings.replica)
