"""The trainer's process: `python -m trainer_svc`."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from common import streams
from common.bus import Bus, Slots
from common.errors import Fatal
from common.leases import Identity, Placed, budget_bytes, leased_executor, placed
from common.messages import ReplicaReport
from common.periodic import run_forever
from common.pools import Pool, chosen_pool
from common.pools.model_files import name_in_file, with_model_files
from common.runtime.process import leave, pin
from common.runtime.service import Running, report_replica, run_service
from trainer_svc.settings import TrainerSettings

if TYPE_CHECKING:
    from trainer_svc.gate import Gate
    from trainer_svc.learner import Learner
    from trainer_svc.service import Trainer
    from trainer_svc.state.resident import Residents

PREFETCHED_BATCHES = 2
"""Batches in progress beyond those that are computed: one being read, one being published."""
MAX_WAITING_BATCHES = 64
"""Batches that may wait for their tenant's turn in a pool's only trainer. With other trainers alive, waiting here would withhold them."""

log = structlog.get_logger()


@dataclass(frozen=True)
class _Made:
    trainer: "Trainer"
    learner: "Learner"
    residents: "Residents"
    slots: Slots


async def main(running: Running[TrainerSettings]) -> None:
    settings = running.settings
    pool = chosen_pool(settings.pool, settings.pools_file, "MARLAAS_TRAINER_POOL")
    if settings.accelerator:
        await _train_in_turns(running, pool)
    else:
        await _train_alone(running, pool)


async def _train_alone(running: Running[TrainerSettings], pool: Pool) -> None:
    settings = running.settings
    _pin(settings.cores)
    made = await _trainer(running, pool, None, ())
    consuming = running.bus.consume(streams.trainer_batches(settings.pool), made.trainer.handle, made.slots)
    await _run(running, made, _detail(settings, is_awake=True), consuming)


async def _train_in_turns(running: Running[TrainerSettings], pool: Pool) -> None:
    """Run as an executor of a shared accelerator."""
    settings, bus = running.settings, running.bus
    place = placed(Identity(settings.accelerator, "trainer", settings.pool, settings.replica), settings.pools_file)
    if not place.accelerator.on_cpu:  # before pinning, since a GPU's other executors share these cores
        await asyncio.to_thread(_import_heavy)
    cores = _cores_of_learner(settings.cores, place)
    made = await _trainer(running, pool, await asyncio.to_thread(budget_bytes, place.accelerator), cores)
    from trainer_svc.parking import TrainerExecutor

    def show(is_awake: bool) -> None:
        running.health.detail = _detail(settings, is_awake=is_awake)

    trainer, slots = made.trainer, made.slots
    executable = TrainerExecutor(trainer, made.learner, made.residents, slots)
    reads, consuming = place.reading(bus, slots, trainer.handle, move_s=trainer.move_s)
    executor = leased_executor(bus, place, executable, place.locks(settings.accelerators_dir), reads, data_dir=settings.data_dir, show=show)
    await _run(running, made, _detail(settings, is_awake=False), consuming, executor.run(), busy=lambda: executor.busy)


async def _run(
    running: Running[TrainerSettings],
    made: _Made,
    detail: str,
    *consumers: Coroutine[Any, Any, None],
    busy: Callable[[], dict[str, float]] = dict,
) -> None:
    """Run `consumers` and the background work until cancelled. `busy`: further figures for the replica's report."""
    settings = running.settings

    def report() -> ReplicaReport:
        return ReplicaReport(replica=settings.replica, service="trainer", pool=settings.pool, busy=made.trainer.busy() | busy())

    async with asyncio.TaskGroup() as runners:
        runners.create_task(report_replica(running.bus, report))
        runners.create_task(_share_batches(running.bus, settings.pool, settings.replica, made.slots, made.trainer.gate))
        for consumer in consumers:
            runners.create_task(consumer)
        running.health.set_ready(detail)


def _detail(settings: TrainerSettings, *, is_awake: bool) -> str:
    return f"training for pool '{settings.pool}'" if is_awake else f"waits for its accelerator '{settings.accelerator}'"


async def _share_batches(bus: Bus, pool: str, replica: str, slots: Slots, gate: "Gate") -> None:
    """Hold waiting batches only while this is the pool's only trainer; runs until cancelled."""
    is_alone = True

    async def look() -> None:
        nonlocal is_alone
        reports = await bus.kv.values(streams.REPLICAS_BUCKET, ReplicaReport)
        was_alone, is_alone = is_alone, not any(one.service == "trainer" and one.pool == pool and one.replica != replica for one in reports)
        if was_alone and not is_alone:
            slots.take(MAX_WAITING_BATCHES)
        elif is_alone and not was_alone:
            slots.release(MAX_WAITING_BATCHES)
        gate.note_others(have=not is_alone)

    await run_forever(look, streams.REPLICA_TTL_S / 2, "replicas_unknown")


def _pin(cores: tuple[int, ...]) -> None:
    """Pin this process to the cores; threads that start later inherit the affinity. Raises: Fatal."""
    try:
        pin(cores)
    except OSError as error:
        raise Fatal(f"cannot pin to cores {list(cores)}: {error.strerror}; correct MARLAAS_TRAINER_CORES") from None


def _cores_of_learner(cores: tuple[int, ...], place: Placed) -> tuple[int, ...]:
    """Reserve the cores for the learner's thread, since other threads run even while another executor computes there; returns the cores.

    Empty if the whole process is pinned instead: on a shared GPU, or if there are no other cores. Raises: Fatal.
    """
    before = os.sched_getaffinity(0)
    _pin(cores)
    if not (left := place.cores_to_leave(cores)):
        return ()
    pin(before)
    if leave(*left):
        return cores
    pin(cores)
    return ()


async def _trainer(running: Running[TrainerSettings], pool: Pool, budget: int | None, cores: tuple[int, ...]) -> _Made:
    """Import torch, which takes seconds, in a thread, so that health probes and NATS are served meanwhile; then load the model.

    `budget`: device bytes on a shared accelerator, where the first wake loads the model. `cores`: for the learner's thread.
    """
    settings = running.settings
    running.health.detail = f"loading base model {pool.model}"
    await asyncio.to_thread(_import_heavy)
    from trainer_svc.learner import Learner
    from trainer_svc.model.memory import own_bytes
    from trainer_svc.service import Trainer
    from trainer_svc.state.resident import Residents

    named, pool = name_in_file(pool, settings.pools_file), await asyncio.to_thread(with_model_files, settings.pool, pool)
    learner = await Learner.start(
        pool,
        device=settings.device,
        threads=settings.threads,
        shared_steps=settings.shared_steps,
        budget=budget,
        share=settings.gpu_memory_share,
        named=named,
        cores=cores,
    )
    states_bytes = int(settings.resident_gib * 2**30)
    if budget is None and (device := learner.policy.device).type != "cpu":
        budget = own_bytes(device, pool, settings.gpu_memory_share)
    if budget is not None:
        states_bytes = min(states_bytes, learner.needs.states_bytes(budget, pool.max_rank))
    residents = Residents(settings.resident_tasks, states_bytes, int(settings.host_gib * 2**30))
    slots = settings.shared_steps + PREFETCHED_BATCHES
    trainer = Trainer(running.bus, learner, residents, settings.pool, checkpoint_every=pool.checkpoint_every, slots=slots)
    return _Made(trainer, learner, residents, Slots(slots + MAX_WAITING_BATCHES))


def _import_heavy() -> None:
    import trainer_svc.service  # noqa: F401  # pyright: ignore[reportUnusedImport]


if __name__ == "__main__":
    run_service(TrainerSettings, main)
