"""Handler: TrainBatch → WeightUpdated.

Many batches may wait here for few slots, which tenants get in fair order by the seconds that their steps take; only a batch with
a slot is read and trained. While the trainer is parked (`parking.py`), batches whose step has not begun hold only their message,
or are handed back if other trainers of the pool are alive, which is no failed attempt (`common/bus/handling.py`).

The handler may run twice for one batch. An announced step is announced unchanged, not retrained. Any other is trained from the
checkpoint that the batch names, and its blobs are named by their content.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import structlog
from prometheus_client import Counter, Histogram, Summary

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Delivery, Outgoing
from common.errors import HandedBack, Reject
from common.fairness.fair_slots import FairSlots
from common.messages import AdapterRef, BlobRef, CheckpointRef, TaskStatus, TrainBatch, TrajectoriesScored, WeightUpdated
from common.resilience import crashpoints
from common.task_states import ENDED
from trainer_svc.algorithm.sample_store import SampleKeeper
from trainer_svc.algorithm.step_metrics import finite
from trainer_svc.batch import Group, assemble, sequences_of
from trainer_svc.device.errors import device_errors, scratch_folder
from trainer_svc.gate import Gate
from trainer_svc.learner import Learner, Trained
from trainer_svc.replay.steps import restore
from trainer_svc.state.resident import Resident, Residents
from trainer_svc.state.step_recording import Recording, lineage_of, origin_of, write_lineage, write_recording

MAX_CONCURRENT_READS = 32
MIN_MOVE_S = 1.0
"""Minimum seconds that a step away from its task's home costs, used until a state was restored."""
TRAINED_TOKENS = Counter("marlaas_trainer_tokens_total", "Tokens trained on, padding not counted")
PHASES = ("read", "restore", "wait", "score", "forward_backward", "optimizer", "publish")
"""Phases with a metric `<phase>_s`. Listed explicitly, because environments add other metrics, and labels must be few."""
COMPUTED = ("score", "forward_backward", "optimizer")
"""Phases in which a step uses the device exclusively; its tenant is charged for these."""
PHASE_S = Histogram(
    "marlaas_trainer_phase_seconds",
    "Time that a step spends in each phase",
    ["phase"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
STALENESS = Histogram(
    "marlaas_trainer_staleness_versions", "Mean staleness of a step's trajectories", buckets=(0, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)
)
MISMATCH = Histogram(
    "marlaas_trainer_sampler_mismatch_nats",
    "Difference between sampler and trainer on tokens of the trained version",
    buckets=(1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1),
)
STEP_MEANS = (
    "reward_mean", "zero_variance_share", "advantage_std", "entropy", "kl_sampler", "kl_base", "clip_fraction", "grad_norm",
    "response_length", "truncated_share", "effective_sample_share",
)  # fmt: skip
"""Step metrics that are exported summed over all tasks; each task's own are in its events."""
STEP_METRIC = Summary("marlaas_trainer_step_metric", "Metrics of steps, by name: sum and count", ["metric"])
TRAINED = Counter("marlaas_trainer_trained_trajectories_total", "Trajectories trained on, by staleness in versions", ["staleness"])
SKIPPED = Counter("marlaas_trainer_skipped_updates_total", "Updates skipped because their numbers were not finite")

log = structlog.get_logger()


class Trainer:
    """Handler of batches for the tasks of one pool."""

    def __init__(self, bus: Bus, learner: Learner, residents: Residents, pool: str, *, checkpoint_every: int = 1, slots: int = 3) -> None:
        """`slots`: batches read, trained or published concurrently."""
        self._bus = bus
        self._blobs = Blobs(bus)
        self._learner = learner
        self._residents = residents
        self._pool = pool
        self._checkpoint_every = checkpoint_every
        self._slots = FairSlots(slots)
        self._restore_s = 0.0
        self.gate = Gate()
        self.samples = SampleKeeper(bus)

    def busy(self) -> dict[str, float]:
        """Load figures for the replica's report."""
        steps = self._learner.waiting + self._slots.waiting + self.gate.waiting
        return {"steps": float(steps), "residents": float(len(self._residents))}

    def move_s(self) -> float:
        """Extra seconds of a task's step away from its home: its state is restored here, and at its home afterwards."""
        return max(MIN_MOVE_S, 2 * self._restore_s)

    async def handle(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        """Train the batch's step and announce its version. Raises: Reject if the batch contradicts its trajectories, or the step fails
        (`step.step`)."""
        batch = delivery.read(TrainBatch)
        if batch.pool != self._pool:
            raise Reject(f"batch of task {batch.task} is for pool '{batch.pool}'; this trainer serves '{self._pool}'")
        if await self._has_ended(batch.task):
            return
        update = await self._announced(batch)
        if update is None:
            try:
                update = await self._step_in_turn(batch)
            except Reject:
                if await self._has_ended(batch.task):  # its messages and blobs may already be deleted, and the step is not needed
                    return
                raise
            if update is None:
                return
        elif update.version > batch.version + 1:
            log.info("step_superseded", version=batch.version + 1, announced=update.version)
            return
        with self.gate.one_behind(), self.gate.one_published():  # parking waits until it is sent; then another has the device
            yield Outgoing(streams.weight_updated(update.pool, update.task), update, f"{update.task}:v{update.version}:weights")

    async def _has_ended(self, task: str) -> bool:
        status = await self._bus.kv.get(streams.TASKS_BUCKET, task, TaskStatus)
        if status is None or status.state not in ENDED:
            return False
        self._residents.forget(task)
        log.info("batch_dropped", state=status.state)
        return True

    async def _announced(self, batch: TrainBatch) -> WeightUpdated | None:
        """The task's last announcement, if it is of this batch or the scheduler has counted this step; any other is ignored."""
        last = await self._bus.streams.last(streams.WEIGHTS, streams.weight_updated(batch.pool, batch.task))
        try:
            update = last.read(WeightUpdated) if last else None
        except Reject as error:  # not sent by a trainer, and it must not stop this task
            log.warning("announcement_unreadable", reason=str(error))
            return None
        if update is None or update.version <= batch.version:
            return None
        status = await self._bus.kv.get(streams.TASKS_BUCKET, batch.task, TaskStatus)
        is_counted = update.version > batch.version + 1 if status is None else status.version > batch.version
        if is_counted or (update.version == batch.version + 1 and update.trained == batch.digest):
            return update
        log.warning("announcement_not_believed", version=update.version, batch=batch.version)
        return None

    async def _step_in_turn(self, batch: TrainBatch) -> WeightUpdated | None:
        """Run the step once its tenant's turn comes and the trainer is awake; None if the task has ended meanwhile."""
        while True:
            await self.gate.passed()
            await self._slots.acquire(batch.claimant)
            computed_s = 0.0
            try:
                if await self._has_ended(batch.task):
                    return None
                if not self.gate.is_closed:
                    with self.gate.one_behind():
                        update = await self._step(batch)
                    computed_s = sum(update.metrics.get(f"{phase}_s", 0.0) for phase in COMPUTED)
                    return update
            except HandedBack:
                if not self.gate.is_closed:
                    raise
                log.info("step_handed_back", version=batch.version + 1)
            finally:
                self._slots.release(batch.claimant, computed_s)

    async def _step(self, batch: TrainBatch) -> WeightUpdated:
        """Read, restore, train, and store the blobs; returns the announcement."""
        started_s = time.time()
        spent: dict[str, float] = {}
        with _timed(spent, "read_s"):
            groups = assemble(batch, await self._read(sequences_of(batch)), self._learner.vocabulary)
        with _timed(spent, "restore_s"):
            with device_errors(self._learner.needs.advice(batch.spec)):  # it may return from host memory
                kept = self._resident(batch)
            start = kept or await restore(self._blobs, self._learner, batch)
        if not kept:
            self._restore_s = spent["restore_s"]
        trained = await self._learner.train(start, groups, batch.spec)
        resident = trained.step.resident
        self.samples.keep(batch, trained.step)
        with _timed(spent, "publish_s"), self.gate.one_published():
            if kept and not self._is_due(resident, batch):
                adapter, checkpoint, recording = await self._publish_lineage(batch, groups, trained)
            else:
                resident = replace(resident, stored_at=resident.version)
                (adapter, checkpoint), recording = await self._publish(batch, groups, trained), await self._record(batch, groups)
        crashpoints.reached("after_blobs")
        self._residents.keep(resident, checkpoint.sha256)
        await self._residents.park_late(resident.task, self._learner.in_thread)
        found = trained.step.metrics | spent | {"wait_s": trained.waited_s}
        metrics = finite(found)  # PostgreSQL would refuse a step with others
        if dropped := sorted(found.keys() - metrics.keys()):
            log.warning("metrics_dropped", version=resident.version, metrics=dropped)
        self._observe(trained, metrics)
        return WeightUpdated(
            tenant=batch.tenant,
            task=batch.task,
            pool=batch.pool,
            version=resident.version,
            adapter=adapter,
            checkpoint=checkpoint,
            trained=batch.digest,
            batch=recording,
            metrics=metrics,
            trained_tokens=trained.step.trained_tokens,
            started_s=started_s,
            finished_s=time.time(),
        )

    async def _read(self, sequences: list[int]) -> dict[int, TrajectoriesScored]:
        """Scored messages by sequence, fetched concurrently. Raises: Reject if one was deleted."""
        bound = asyncio.Semaphore(MAX_CONCURRENT_READS)

        async def read(sequence: int) -> TrajectoriesScored:
            async with bound:
                try:
                    return (await self._bus.streams.read(streams.SCORED, sequence)).read(TrajectoriesScored)
                except LookupError as error:
                    raise Reject(f"trajectories of the batch are gone: {error}") from None

        messages = await asyncio.gather(*(read(sequence) for sequence in sequences))
        return dict(zip(sequences, messages, strict=True))

    def _resident(self, batch: TrainBatch) -> Resident | None:
        """State of the batch's version, if it is in memory."""
        resident = self._residents.get(batch.task, batch.checkpoint.sha256) if batch.checkpoint else None
        return resident if resident is not None and resident.version == batch.version else None

    def _is_due(self, resident: Resident, batch: TrainBatch) -> bool:
        """Whether this version's state is stored: every `checkpoint_every` steps, if the task's `keep.every` asks for it, and at the task's
        end."""
        every = batch.spec.keep.every
        is_asked_for = resident.version == batch.spec.steps or (every > 0 and resident.version % every == 0)
        return is_asked_for or resident.version - resident.stored_at >= self._checkpoint_every

    async def _publish(self, batch: TrainBatch, groups: Sequence[Group], trained: Trained) -> tuple[AdapterRef, CheckpointRef]:
        """Store the new version's adapter and checkpoint."""
        resident = trained.step.resident
        origin = await asyncio.to_thread(origin_of, batch, groups)
        name = f"{batch.task}.v{resident.version}"
        with scratch_folder("version") as folder:
            paths = folder / "adapter", folder / "checkpoint"
            await self._learner.write(resident, batch.spec, paths[0], (origin, paths[1]))
            adapter, checkpoint = await asyncio.gather(
                self._blobs.put_folder(f"{name}.adapter", paths[0]), self._blobs.put_folder(f"{name}.checkpoint", paths[1])
            )
        return _reference(batch, trained, adapter), CheckpointRef(**dict(checkpoint))

    async def _publish_lineage(
        self, batch: TrainBatch, groups: Sequence[Group], trained: Trained
    ) -> tuple[AdapterRef, CheckpointRef, BlobRef]:
        """Store the new version's adapter, and in place of its state the lineage from which it is recomputed."""
        resident = trained.step.resident
        name = f"{batch.task}.v{resident.version}"
        with scratch_folder("version") as folder:
            paths = folder / "adapter", folder / "checkpoint", folder / "batch"
            await self._learner.write(resident, batch.spec, paths[0], None)
            await asyncio.to_thread(write_recording, paths[2], Recording(batch, list(groups)))
            adapter, recording = await asyncio.gather(
                self._blobs.put_folder(f"{name}.adapter", paths[0]), self._blobs.put_folder(f"{name}.batch", paths[2])
            )
            lineage = await asyncio.to_thread(lineage_of, resident, batch, groups, adapter=adapter, recording=recording)
            await asyncio.to_thread(write_lineage, paths[1], lineage)
            checkpoint = await self._blobs.put_folder(f"{name}.checkpoint", paths[1])
        return _reference(batch, trained, adapter), CheckpointRef(**dict(checkpoint), since=lineage.since), recording

    async def _record(self, batch: TrainBatch, groups: Sequence[Group]) -> BlobRef | None:
        """Store the trained batch, if the task keeps batches."""
        if not batch.spec.keep.batches:
            return None
        with scratch_folder("batch") as folder:
            await asyncio.to_thread(write_recording, folder, Recording(batch, list(groups)))
            return await self._blobs.put_folder(f"{batch.task}.v{batch.version + 1}.batch", folder)

    def _observe(self, trained: Trained, metrics: dict[str, float]) -> None:
        TRAINED_TOKENS.inc(trained.step.trained_tokens)
        for phase in PHASES:
            PHASE_S.labels(phase).observe(metrics[f"{phase}_s"])
        STALENESS.observe(metrics["staleness_mean"])
        for name in [name for name in STEP_MEANS if name in metrics]:
            STEP_METRIC.labels(name).observe(metrics[name])
        for name in [name for name in metrics if name.startswith("staleness.")]:
            TRAINED.labels(name.removeprefix("staleness.")).inc(round(metrics[name] * metrics["trajectories"]))
        if "sampler_mismatch" in metrics:
            MISMATCH.observe(metrics["sampler_mismatch"])
        if trained.step.skipped:
            SKIPPED.inc(len(trained.step.skipped))
            log.warning("updates_skipped", version=trained.step.resident.version, numbers=trained.step.skipped)
        log.info("step_taken", version=trained.step.resident.version, **{name: round(value, 6) for name, value in metrics.items()})


def _reference(batch: TrainBatch, trained: Trained, adapter: BlobRef) -> AdapterRef:
    resident = trained.step.resident
    return AdapterRef(task=batch.task, version=resident.version, rank=resident.layout.rank, blob=adapter, canary=trained.step.canary)


@contextmanager
def _timed(spent: dict[str, float], phase: str) -> Generator[None]:
    started_s = time.monotonic()
    yield
    spent[phase] = time.monotonic() - started_s
