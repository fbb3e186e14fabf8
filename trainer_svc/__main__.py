"""The trainer's process: `python -m trainer_svc`."""

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from common import streams
from common.bus import Bus, Slots
from common.errors import Fatal
from common.homes import Queues
from common.leases import Identity, LeasedExecutor, Placed, Reading, budget_bytes, leased_executor, placed
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
"""Batches in progress beyond those that compute: one is read, one is published."""
MAX_WAITING_BATCHES = 64
"""Batches that wait for their tenant's turn, in a pool with one trainer. Where others live, what waits here would be kept from them."""

log = structlog.get_logger()


@dataclass(frozen=True)
class _Made:
    trainer: "Trainer"
    learner: "Learner"
    residents: "Residents"


async def main(running: Running[TrainerSettings]) -> None:
    settings = running.settings
    pool = chosen_pool(settings.pool, settings.pools_file, "MARLAAS_TRAINER_POOL")
    place = _place(settings)
    if place is not None and not place.accelerator.on_cpu:  # before it is pinned: other executors of the GPU have the same cores
        await asyncio.to_thread(_import_heavy)
    cores = _pinned(settings.cores, place)
    running.health.detail = f"loading base model {pool.model}"
    budget = await asyncio.to_thread(budget_bytes, place.accelerator) if place is not None else None
    made = await _trainer(running, pool, budget, cores)
    trainer, slots = made.trainer, Slots(settings.shared_steps + PREFETCHED_BATCHES + MAX_WAITING_BATCHES)
    queues = place.queues(running.bus, slots, move_s=trainer.move_s) if place is not None else None
    executor = _executor(running, place, made, slots, queues) if place is not None else None

    def report() -> ReplicaReport:
        busy = trainer.busy() | (executor.busy if executor else {})
        return ReplicaReport(replica=settings.replica, service="trainer", pool=settings.pool, busy=busy)

    async with asyncio.TaskGroup() as runners:
        runners.create_task(report_replica(running.bus, report))
        runners.create_task(_share_batches(running.bus, settings.pool, settings.replica, slots, trainer.gate))
        if queues is not None:
            runners.create_task(queues.consume(trainer.handle))
        else:
            runners.create_task(running.bus.consume(streams.trainer_batches(settings.pool), trainer.handle, slots))
        if executor is not None:
            runners.create_task(executor.run())
        running.health.set_ready(_detail(settings, is_awake=executor is None))


def _detail(settings: TrainerSettings, *, is_awake: bool) -> str:
    return f"training for pool '{settings.pool}'" if is_awake else f"waits for its accelerator '{settings.accelerator}'"


def _place(settings: TrainerSettings) -> Placed | None:
    """None for a trainer with an accelerator of its own. Raises: Fatal."""
    if not settings.accelerator:
        return None
    return placed(Identity(settings.accelerator, "trainer", settings.pool, settings.replica), settings.pools_file)


def _executor(running: Running[TrainerSettings], place: Placed, made: _Made, slots: Slots, queues: Queues | None) -> LeasedExecutor:
    """Takes turns on a shared accelerator. Raises: Fatal."""
    from trainer_svc.parking import TrainerExecutor

    settings = running.settings

    def show(is_awake: bool) -> None:
        running.health.detail = _detail(settings, is_awake=is_awake)

    return leased_executor(
        running.bus,
        place,
        TrainerExecutor(made.trainer, made.learner, made.residents, slots),
        place.locks(settings.accelerators_dir),
        Reading([streams.trainer_batches(settings.pool)]) if queues is None else Reading(queues.own, queues),
        data_dir=settings.data_dir,
        show=show,
    )


async def _share_batches(bus: Bus, pool: str, replica: str, slots: Slots, gate: "Gate") -> None:
    """Hold waiting batches only while this is the pool's one trainer, until cancelled."""
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


def _pinned(cores: tuple[int, ...], place: Placed | None) -> tuple[int, ...]:
    """Pin this process to the cores; threads that start later inherit it. Raises: Fatal.

    Cores that are a shared accelerator are returned instead: for the learner's thread alone, as all others run while another computes
    there. Where this process has no other cores it is pinned, and on a shared GPU.
    """
    before = os.sched_getaffinity(0)
    try:
        pin(cores)
    except OSError as error:
        raise Fatal(f"cannot pin to cores {list(cores)}: {error.strerror}; correct MARLAAS_TRAINER_CORES") from None
    if place is None or not (left := place.cores_to_leave(cores)):
        return ()
    pin(before)
    if leave(*left):
        return cores
    pin(cores)
    return ()


async def _trainer(running: Running[TrainerSettings], pool: Pool, budget: int | None, cores: tuple[int, ...]) -> _Made:
    """Import torch, which takes seconds, outside the event loop, so that health probes and NATS are answered; then load the model.
    `budget`: bytes of a shared accelerator, where it is loaded by the first wake. `cores`: of the learner's thread."""
    settings = running.settings
    await asyncio.to_thread(_import_heavy)
    from trainer_svc.learner import Learner
    from trainer_svc.service import Trainer
    from trainer_svc.state.resident import Residents

    named, pool = name_in_file(pool, settings.pools_file), await asyncio.to_thread(with_model_files, settings.pool, pool)
    learner = await Learner.start(
        pool,
        device=settings.device,
        threads=settings.threads,
        shared_steps=settings.shared_steps,
        budget=budget,
        named=named,
        cores=cores,
    )
    states_bytes = int(settings.resident_gib * 2**30)
    if budget is not None:
        states_bytes = min(states_bytes, learner.needs.states_bytes(budget, pool.max_rank))
    residents = Residents(settings.resident_tasks, states_bytes, int(settings.host_gib * 2**30))
    slots = settings.shared_steps + PREFETCHED_BATCHES
    trainer = Trainer(running.bus, learner, residents, settings.pool, checkpoint_every=pool.checkpoint_every, slots=slots)
    return _Made(trainer, learner, residents)


def _import_heavy() -> None:
    import trainer_svc.service  # noqa: F401  # pyright: ignore[reportUnusedImport]


if __name__ == "__main__":
    run_service(TrainerSettings, main)
