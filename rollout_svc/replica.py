"""Builds one replica: its engine, the consumers of its messages, and, on a shared accelerator, its executor."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from common.accelerators.memory import driver_memory
from common.blobs import Blobs
from common.bus import Slots
from common.errors import Fatal
from common.leases import Identity, PoolClocks, leased_executor, placed
from common.messages import ReplicaReport
from common.messages.status import WITHHELD
from common.pools import Pool, chosen_pool
from common.pools.model_files import name_in_file, with_model_files
from common.runtime.process import leave
from common.runtime.service import Running, report_replica
from common.streams import rollout_samples, rollout_serves
from common.task_states import TaskStates
from rollout_svc.accelerators.sampler import Sampler
from rollout_svc.accelerators.sizes import Capacity
from rollout_svc.adapters import Adapters
from rollout_svc.coserving import figures
from rollout_svc.coserving.lender import Lender
from rollout_svc.coserving.lending import Room
from rollout_svc.engine.config import EngineSettings, Tolerance
from rollout_svc.engine.engine import Engine
from rollout_svc.engine.process import EngineProcess
from rollout_svc.engine.start import import_vllm
from rollout_svc.engine.stream import engine_name, stream
from rollout_svc.service import Rollout, every_task
from rollout_svc.serving.admission import Admission
from rollout_svc.serving.aliases import KeptAliases
from rollout_svc.serving.replies import Replies
from rollout_svc.serving.request import ServingContext
from rollout_svc.serving.service import TAKEN_PER_SEQUENCE, Serving
from rollout_svc.settings import RolloutSettings
from rollout_svc.text.chat import Chat

MOVE_S = 1.0
"""Assumed seconds that a turn costs more on another sampler, which must fetch, check and load its adapter and recompute its prefix."""


async def serve(running: Running[RolloutSettings]) -> None:
    """Serve until cancelled."""
    settings = running.settings
    pool = chosen_pool(settings.pool, settings.pools_file, "MARLAAS_ROLLOUT_POOL")
    running.health.detail = f"starting the engine for {pool.model}"
    _refuse_takes(settings, pool)
    named, pool = name_in_file(pool, settings.pools_file), await asyncio.to_thread(with_model_files, settings.pool, pool)
    seated = pool.model_copy(update={"serving": None}) if settings.takes == "rollouts" else pool
    counts = settings.data_dir.absolute() / "figures" / settings.replica
    engine_settings = replace(EngineSettings.of(seated, device=settings.device, cores=settings.cores), named=named, figures=counts)
    if settings.accelerator:
        await _serve_in_turns(running, pool, engine_settings)
    else:
        await _serve_alone(running, pool, engine_settings)


def _refuse_takes(settings: RolloutSettings, pool: Pool) -> None:
    """Raises: Fatal if the replica cannot take only the work that its settings name."""
    if settings.takes == "serving" and pool.serving is None:
        missing = f"pool '{settings.pool}' is not served; add [{settings.pool}.serving] to {settings.pools_file}"
        raise Fatal(f"MARLAAS_ROLLOUT_TAKES is 'serving', but {missing}, or remove the setting")
    if settings.takes == "serving" and settings.accelerator:
        raise Fatal(
            "MARLAAS_ROLLOUT_TAKES is 'serving', but slices of a shared accelerator follow rollouts; remove MARLAAS_ROLLOUT_ACCELERATOR"
        )


async def _serve_alone(running: Running[RolloutSettings], pool: Pool, engine_settings: EngineSettings) -> None:
    settings, engine = running.settings, await Engine.start(engine_settings)
    try:
        replica = await Replica.of(running, pool, engine)
        await engine.warm_up()
        replica.show(True)
        consumer = rollout_samples(settings.pool)
        await replica.run(running.bus.consume(consumer, replica.rollout.handle, replica.slots, max_pull=settings.pull))
    finally:
        engine.process.close()


async def _serve_in_turns(running: Running[RolloutSettings], pool: Pool, engine_settings: EngineSettings) -> None:
    """Serve as an executor of a shared accelerator; the first wake starts the engine."""
    settings, bus = running.settings, running.bus
    place = placed(Identity(settings.accelerator, "rollout", settings.pool, settings.replica), settings.pools_file)
    locks = place.locks(settings.accelerators_dir)
    leave(*place.cores_to_leave(settings.cores))
    engine_settings = replace(engine_settings, sleeps=True, locks=locks.descriptors)
    await asyncio.to_thread(import_vllm, engine_settings)  # the first wake should not wait for imports
    engine = Engine(EngineProcess(engine_settings))
    try:
        gpu_bytes = None if place.accelerator.on_cpu else (await asyncio.to_thread(driver_memory, place.accelerator.device)).total_bytes
        replica = await Replica.of(running, pool, engine, gpu_bytes)
        await replica.adapters.stop()  # until the engine is awake
        serving, slots, rollout = replica.serving, replica.slots, replica.rollout
        intake = [slots, *([serving.slots] if serving is not None else [])]
        sampler = Sampler(engine, replica.adapters, rollout, intake, serving, gpu_bytes)
        reads, consuming = place.reading(bus, slots, rollout.handle, move_s=lambda: MOVE_S, max_pull=settings.pull)
        if serving is not None:
            reads = replace(reads, consumers=[*reads.consumers, rollout_serves(settings.pool)])
        executor = leased_executor(bus, place, sampler, locks, reads, data_dir=settings.data_dir, show=replica.show)
        replica.show(False)
        is_wanted = reads.siblings.is_at_home if reads.siblings is not None else every_task
        await replica.run(consuming, executor.run(), busy=lambda: executor.busy, is_wanted=is_wanted)
    finally:
        engine.process.close()


@dataclass(frozen=True)
class Replica:
    """A replica of one pool, and the background work beside its consumers."""

    running: Running[RolloutSettings]
    pool: Pool
    engine: Engine
    chat: Chat
    adapters: Adapters
    rollout: Rollout
    slots: Slots
    clocks: PoolClocks
    capacity: Capacity
    serving: Serving | None
    sequences: int
    """Rollouts that it takes without served requests."""
    lender: Lender | None
    """None without goals, and for a replica that takes only one kind of work."""

    @classmethod
    async def of(cls, running: Running[RolloutSettings], pool: Pool, engine: Engine, gpu_bytes: int | None = None) -> "Replica":
        """Build a replica. `gpu_bytes`: as in `Capacity`. Raises: Fatal if the model has no usable tokenizer."""
        settings, bus = running.settings, running.bus
        chat = await asyncio.to_thread(Chat.load, pool.model)
        said = settings.canary_tolerance
        adapters = Adapters(
            engine,
            Blobs(bus),
            settings.data_dir.absolute() / "adapters" / settings.replica,
            keep=settings.keep_versions,
            keep_s=settings.keep_s,
            tolerance=Tolerance(max=said, mean=said) if said else engine.canary_tolerance,
        )
        sequences = 0 if settings.takes == "serving" else pool.sequences
        tasks, clocks, slots = TaskStates(), PoolClocks(bus), Slots(sequences)
        await tasks.read(bus)
        if pool.samplers_on:
            await clocks.read()
        thoughts = pool.serving.thoughts if pool.serving else None
        rollout = Rollout(engine, chat, adapters, tasks, slots, clocks.now_s, thoughts)
        serving = _serving(running, pool, engine, chat, adapters)
        lender = _lender(running, pool, engine, rollout, slots)
        return cls(running, pool, engine, chat, adapters, rollout, slots, clocks, Capacity(engine, gpu_bytes), serving, sequences, lender)

    def show(self, is_awake: bool) -> None:
        """Describe the current activity in the process's health."""
        settings = self.running.settings
        sampling = f"sampling for pool '{settings.pool}', {self.capacity.kv_tokens} tokens of KV cache"
        self.running.health.detail = sampling if is_awake else f"waits for its accelerator '{settings.accelerator}'"

    async def run(
        self,
        *consumers: Coroutine[Any, Any, None],
        busy: Callable[[], dict[str, float]] = dict,
        is_wanted: Callable[[str], bool] = every_task,
    ) -> None:
        """Run `consumers` and the background work until cancelled.

        `busy`: adds figures to the replica report. `is_wanted`: as in `Rollout.follow_versions`.
        """
        settings, bus = self.running.settings, self.running.bus
        async with asyncio.TaskGroup() as runners:
            runners.create_task(self.engine.process.wait_fatal())
            runners.create_task(self.adapters.run())
            runners.create_task(self.rollout.follow_tasks(bus))
            if self.pool.samplers_on:
                runners.create_task(self.clocks.follow())
            runners.create_task(self.rollout.follow_versions(bus, settings.pool, is_wanted))
            runners.create_task(report_replica(bus, lambda: self._report(busy())))
            if self.lender is not None:
                runners.create_task(self.lender.run())
            if self.serving is not None:
                runners.create_task(self.serving.run(bus, settings.pool, settings.replica))
                runners.create_task(KeptAliases(self.adapters, settings.pool).run(bus))
            for consumer in consumers:
                runners.create_task(consumer)
            self.running.health.set_ready(self.running.health.detail)

    def _report(self, busy: dict[str, float]) -> ReplicaReport:
        requests = self.serving.requests if self.serving else 0
        return ReplicaReport(
            replica=self.running.settings.replica,
            service="rollout",
            pool=self.running.settings.pool,
            sequences=self.lender.room.sequences if self.lender is not None else self.sequences,
            kv_tokens=self.capacity.kv_tokens,
            invariant=self.engine.is_invariant,
            template_variables=sorted(self.chat.template_variables),
            takes_answers=self.chat.takes_answers,
            busy={"sequences": self.rollout.sequences, "adapters": self.adapters.held, "serving": requests} | self._goals() | busy,
            serves=self.serving is not None,
        )

    def _goals(self) -> dict[str, float]:
        """Figures of a pool with latency goals; empty without."""
        found = dict(self.serving.tally.busy) if self.serving is not None else {}
        if self.engine.settings.goals is not None and (counted := figures.read(self.engine.settings.figures)) is not None:
            found |= counted.busy
        return found | ({WITHHELD: self.lender.withheld} if self.lender is not None else {})


def _serving(running: Running[RolloutSettings], pool: Pool, engine: Engine, chat: Chat, adapters: Adapters) -> Serving | None:
    """Handler of served requests; None for a pool without a table `serving`, and for a replica that takes only rollouts."""
    if pool.serving is None or running.settings.takes == "rollouts":
        return None
    context = ServingContext(
        chat=chat,
        adapters=adapters,
        sample=partial(stream, engine),
        admission=Admission(pool.serving.sequences, pool.serving.adapters),
        context_tokens=pool.context_tokens,
        thoughts=pool.serving.thoughts,
        engine=engine_name(engine),
        goals=pool.serving.goals,
    )
    bus, slots = running.bus, Slots(TAKEN_PER_SEQUENCE * pool.serving.sequences)
    return Serving(context, Replies(running.settings.replica, bus.requests.send), slots, bus.clock.now_s)


def _lender(running: Running[RolloutSettings], pool: Pool, engine: Engine, rollout: Rollout, slots: Slots) -> Lender | None:
    """Lender of a pool with goals; None without, and for a replica that takes only one kind of work."""
    settings, serving = running.settings, pool.serving
    if serving is None or serving.goals is None or settings.takes != "both":
        return None
    room = Room.of(pool.sequences, serving.training_share, time.monotonic())
    read = partial(figures.read, engine.settings.figures)
    return Lender(running.bus, (settings.pool, settings.replica), room, slots, rollout, engine, read)
