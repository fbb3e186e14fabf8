"""Recomputation of recorded steps: to restore a state that is in no checkpoint, and to compare digests with the stored ones.

A step is named by the version that it produced. Tasks with `keep.batches` record their steps. On a CPU with the trainer's number of threads
and PyTorch version a recomputed state has the recorded digest. Elsewhere rounding differs: digests then prove only the inputs, and a
restored adapter must equal the stored one within MAX_ADAPTER_DIFFERENCE.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
import torch
from prometheus_client import Counter

from common import streams
from common.blobs import Blobs, folder_ref
from common.bus import Bus
from common.errors import Reject
from common.messages import Event, StoredStep, TrainBatch
from common.spec import TaskSpec
from trainer_svc.device.errors import scratch_folder
from trainer_svc.learner import Learner
from trainer_svc.model.adapter import read_adapter
from trainer_svc.state.checkpoint import spec_digest
from trainer_svc.state.resident import Resident
from trainer_svc.state.step_recording import (
    Lineage,
    Recording,
    lineage_of,
    origin_of,
    read_lineage,
    read_recording,
    trained_digest,
    vectors_digest,
    write_lineage,
)

MAX_ADAPTER_DIFFERENCE = 0.5
"""Maximum norm of the recomputed minus the stored adapter, as a fraction of the step's change. Adapters of different steps exceed 1."""


STORED_PRECISION = 2**-8
"""Rounding error of an adapter stored in bfloat16, as a fraction of its norm."""


RESTORED = Counter("marlaas_trainer_restored_total", "Checkpoints read because the task was not resident")


RECOMPUTED = Counter("marlaas_trainer_recomputed_total", "Steps recomputed because the state after them was lost and not stored")


log = structlog.get_logger()


@dataclass(frozen=True)
class StepComparison:
    """Digests of one replayed step's blobs and of the recorded ones: SHA-256."""

    version: int
    adapter: str
    recorded_adapter: str
    checkpoint: str
    recorded_checkpoint: str

    @property
    def is_equal(self) -> bool:
        return (self.adapter, self.checkpoint) == (self.recorded_adapter, self.recorded_checkpoint)


async def stored_steps(bus: Bus, task: str) -> dict[int, StoredStep]:
    """Stored blobs of each step of the task, by the version that it produced. Raises: Retry if NATS is unavailable."""
    found: dict[int, StoredStep] = {}
    for subject in await bus.streams.subjects(streams.EVENTS, streams.events("*", task)):
        async for delivery in bus.streams.stored(streams.EVENTS, subject):
            stored = StoredStep.of(delivery.read(Event))
            if stored is not None:
                found.setdefault(stored.adapter.version, stored)
    return found


async def replay_all(bus: Bus, learner: Learner, task: str) -> AsyncIterator[StepComparison]:
    """Replay every step from version 0, each from the state recomputed here, so that only recorded batches are trusted.

    Raises: Reject if a step is not recorded.
    """
    stored = await stored_steps(bus, task)
    if not stored:
        raise Reject(f"no step of task {task} is known here")
    resident: Resident | None = None
    for version in range(1, max(stored) + 1):
        recording = await _recording(bus, stored, task, version)
        if resident is None:
            resident = await begin(Blobs(bus), learner, recording.batch)
        resident, compared = await _replay(learner, resident, recording, stored[version])
        yield compared


async def replay_step(bus: Bus, learner: Learner, task: str, version: int) -> StepComparison:
    """Replay the step that produced `version`, from the stored state before it or from recomputed earlier steps.

    Raises: Reject if it is not recorded, or no earlier state is available.
    """
    stored = await stored_steps(bus, task)
    recordings = [await _recording(bus, stored, task, version)]
    while (resident := await _state(bus, learner, recordings[0])) is None:
        recordings.insert(0, await _recording(bus, stored, task, version - len(recordings)))
    for recording in recordings[:-1]:
        resident = (await learner.train(resident, recording.groups, recording.batch.spec)).step.resident
        resident = _as_stored(resident, stored[resident.version])
    return (await _replay(learner, resident, recordings[-1], stored[version]))[1]


async def _recording(bus: Bus, stored: Mapping[int, StoredStep], task: str, version: int) -> Recording:
    if version not in stored:
        raise Reject(f"task {task} has no step {version}; known are {_listed(stored)}")
    ref = stored[version].batch
    if ref is None:
        raise Reject(f"step {version} of task {task} was not recorded; set keep.batches in the task's file before it runs")
    try:
        with tempfile.TemporaryDirectory(prefix="marlaas-batch-") as folder:
            return await asyncio.to_thread(read_recording, await Blobs(bus).fetch_folder(ref, Path(folder) / "batch"))
    except Reject as error:
        raise Reject(f"step {version} of task {task} cannot be replayed: {error}; keep.batches says how many are kept") from None


async def _state(bus: Bus, learner: Learner, recording: Recording) -> Resident | None:
    """State before the step; None if its checkpoint has been deleted."""
    batch = recording.batch
    if batch.checkpoint is not None and batch.checkpoint.name not in await Blobs(bus).names():
        return None
    return await restore(Blobs(bus), learner, batch)


async def _replay(learner: Learner, resident: Resident, recording: Recording, stored: StoredStep) -> tuple[Resident, StepComparison]:
    """Recompute the step and its blobs' digests; returns the new state and the comparison."""
    batch = recording.batch
    after = (await learner.train(resident, recording.groups, batch.spec)).step.resident
    is_whole = stored.checkpoint.since is None
    with tempfile.TemporaryDirectory(prefix="marlaas-replay-") as folder:
        paths = Path(folder) / "adapter", Path(folder) / "checkpoint"
        await learner.write(after, batch.spec, paths[0], (origin_of(batch, recording.groups), paths[1]) if is_whole else None)
        name = f"{batch.task}.v{after.version}"
        adapter = await asyncio.to_thread(folder_ref, f"{name}.adapter", paths[0])
        if not is_whole:
            assert stored.batch is not None  # the recording that was replayed
            write_lineage(paths[1], lineage_of(after, batch, recording.groups, adapter=adapter, recording=stored.batch))
        checkpoint = await asyncio.to_thread(folder_ref, f"{name}.checkpoint", paths[1])
    return _as_stored(after, stored), StepComparison(
        after.version, adapter.sha256, stored.adapter.blob.sha256, checkpoint.sha256, stored.checkpoint.sha256
    )


def _as_stored(resident: Resident, stored: StoredStep) -> Resident:
    """The state with the trainer's value of `stored_at`."""
    return replace(resident, stored_at=resident.version) if stored.checkpoint.since is None else resident


def _listed(stored: Mapping[int, StoredStep]) -> str:
    return f"{min(stored)} to {max(stored)}" if stored else "none"


async def restore(blobs: Blobs, learner: Learner, batch: TrainBatch) -> Resident:
    """State of `batch.version`. Raises: Reject if a blob is missing, damaged, or of another task, version or spec."""
    if batch.checkpoint is None:
        if batch.version != 0:
            raise Reject(f"batch of task {batch.task} version {batch.version} names no checkpoint; only version 0 has none")
        return await begin(blobs, learner, batch)
    with scratch_folder("checkpoint") as folder:
        fetched = await blobs.fetch_folder(batch.checkpoint, folder / "checkpoint")
        lineage = await asyncio.to_thread(read_lineage, fetched)
        if lineage is None:
            RESTORED.inc()
            return await learner.restore(fetched, batch.task, batch.version, batch.spec)
    found, expected = (lineage.task, lineage.version, lineage.spec_sha256), (batch.task, batch.version, spec_digest(batch.spec))
    if found != expected:
        raise Reject(f"checkpoint is of (task, version, spec) {found}, expected {expected}")
    return await _recompute(blobs, learner, lineage, batch.spec)


async def begin(blobs: Blobs, learner: Learner, batch: TrainBatch) -> Resident:
    """Version 0, from the spec's seed or from another task's adapter. Raises: Reject if that adapter is gone, or has another shape."""
    if batch.start is None:
        return await learner.begin(batch.task, batch.spec)
    with scratch_folder("start") as folder:
        return await learner.begin(batch.task, batch.spec, await blobs.fetch_folder(batch.start.blob, folder / "adapter"))


async def _recompute(blobs: Blobs, learner: Learner, lineage: Lineage, spec: TaskSpec) -> Resident:
    where = f"task {lineage.task} version {lineage.version}"
    recording = await _recorded(blobs, lineage, spec)
    batch = recording.batch
    if (batch.task, batch.version + 1, trained_digest(recording.groups)) != (lineage.task, lineage.version, lineage.trained_sha256):
        raise Reject(f"{where}: the recorded batch is not the one that was trained")
    before = await restore(blobs, learner, batch)
    after = (await learner.train(before, recording.groups, batch.spec)).step.resident
    RECOMPUTED.inc()
    log.info("step_recomputed", version=after.version, since=lineage.since)
    if await asyncio.to_thread(vectors_digest, after) != lineage.vectors_sha256:
        await _require_equal_but_for_rounding(where, blobs, lineage, before, after)
    return after


async def _recorded(blobs: Blobs, lineage: Lineage, spec: TaskSpec) -> Recording:
    with scratch_folder("batch") as folder:
        return await asyncio.to_thread(read_recording, await blobs.fetch_folder(lineage.recording, folder / "batch"), spec)


async def _require_equal_but_for_rounding(where: str, blobs: Blobs, lineage: Lineage, before: Resident, after: Resident) -> None:
    """Raises: Reject if the recomputed adapter differs from the stored one by more than rounding."""
    with scratch_folder("adapter") as folder:
        fetched = await blobs.fetch_folder(lineage.adapter, folder / "adapter")
        stored = await asyncio.to_thread(read_adapter, fetched, after.layout)
    old, new = before.optimizer.params.cpu(), after.optimizer.params.cpu()
    difference, change = (float(torch.linalg.vector_norm(stored - other)) for other in (new, old))
    bound = MAX_ADAPTER_DIFFERENCE * change + STORED_PRECISION * float(torch.linalg.vector_norm(stored))
    if difference > bound:
        raise Reject(f"{where}: recomputed, its adapter differs from the stored one by {difference:.3g}; rounding explains {bound:.3g}")
    log.warning("step_recomputed_otherwise", version=lineage.version, difference=difference, change=change)
