"""Puts a sampler that takes turns on a shared accelerator together, for one replica."""

from collections.abc import Callable

from common.bus import Bus, Slots
from common.leases import Identity, LeasedExecutor, leased_executor
from common.streams import rollout_samples, rollout_serves
from rollout_svc.adapters import Adapters
from rollout_svc.engine import Engine
from rollout_svc.parking.sampler import Sampler
from rollout_svc.service import Rollout
from rollout_svc.serving.service import Serving
from rollout_svc.settings import RolloutSettings


async def executor_of(
    bus: Bus,
    settings: RolloutSettings,
    engine: Engine,
    adapters: Adapters,
    rollout: Rollout,
    slots: Slots,
    serving: Serving | None,
    show: Callable[[bool], None],
) -> LeasedExecutor | None:
    """None for a sampler with an accelerator of its own. `show`: as of LeasedExecutor. Raises: Fatal."""
    if not settings.accelerator:
        return None
    await adapters.stop()  # until its engine is awake
    served = ([serving.slots], [rollout_serves(settings.pool)]) if serving is not None else ([], [])
    return leased_executor(
        bus,
        Identity(settings.accelerator, "rollout", settings.pool, settings.replica),
        Sampler(engine, adapters, rollout, [slots, *served[0]], serving),
        [rollout_samples(settings.pool), *served[1]],
        pools_file=settings.pools_file,
        accelerators_dir=settings.accelerators_dir,
        data_dir=settings.data_dir,
        show=show,
    )
