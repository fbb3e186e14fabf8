"""Recorded steps, taken again: what comes out is compared with what was stored.

A step is known by the version that it made. Steps are recorded for tasks with `keep.batches`. On a CPU with the trainer's
number of threads the digests are equal; other hardware rounds otherwise.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from common import streams
from common.blobs import Blobs, folder_ref
from common.bus import Bus
from common.errors import Reject
from common.messages import Event, StoredStep
from trainer_svc.learner import Learner
from trainer_svc.replay.restoring import begin, restore
from trainer_svc.state.lineage import lineage_of, write_lineage
from trainer_svc.state.resident import Resident
from trainer_svc.state.step_recording import Recording, origin_of, read_recording


@dataclass(frozen=True)
class StepComparison:
    """One step taken again. Digests are of the blobs: SHA-256."""

    version: int
    adapter: str
    recorded_adapter: str
    checkpoint: str
    recorded_checkpoint: str

    @property
    def is_equal(self) -> bool:
        return (self.adapter, self.checkpoint) == (self.recorded_adapter, self.recorded_checkpoint)


async def stored_steps(bus: Bus, task: str) -> dict[int, StoredStep]:
    """What each step of the task left behind, by the version that it made. Raises: Retry when NATS is away."""
    found: dict[int, StoredStep] = {}
    for subject in await bus.streams.subjects(streams.EVENTS, streams.events("*", task)):
        async for delivery in bus.streams.stored(streams.EVENTS, subject):
            stored = StoredStep.of(delivery.read(Event))
            if stored is not None:
                found.setdefault(stored.adapter.version, stored)
    return found


async def replay_all(bus: Bus, learner: Learner, task: str) -> AsyncIterator[StepComparison]:
    """Every step from version 0 on, each going on from what was computed here, so that only the recorded batches are believed.

    Raises: Reject when a step is not recorded.
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
    """The step that made `version`, from the stored state before it, or from what the steps before it come to.

    Raises: Reject when it is not recorded, or nothing before it is.
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
        raise Reject(f"step {version} of task {task} cannot be taken again: {error}; keep.batches says how many are kept") from None


async def _state(bus: Bus, learner: Learner, recording: Recording) -> Resident | None:
    """What the step went on from; None where its checkpoint is no longer kept."""
    batch = recording.batch
    if batch.checkpoint is not None and batch.checkpoint.name not in await Blobs(bus).names():
        return None
    return await restore(Blobs(bus), learner, batch)


async def _replay(learner: Learner, resident: Resident, recording: Recording, stored: StoredStep) -> tuple[Resident, StepComparison]:
    """The step, and its blobs' digests beside those that are on record."""
    batch = recording.batch
    after = (await learner.train(resident, recording.groups, batch.spec)).step.resident
    is_whole = stored.checkpoint.since is None
    with tempfile.TemporaryDirectory(prefix="marlaas-replay-") as folder:
        paths = Path(folder) / "adapter", Path(folder) / "checkpoint"
        await learner.write(after, batch.spec, paths[0], (origin_of(batch, recording.groups), paths[1]) if is_whole else None)
        name = f"{batch.task}.v{after.version}"
        adapter = await asyncio.to_thread(folder_ref, f"{name}.adapter", paths[0])
        if not is_whole:
            assert stored.batch is not None  # the recording that was just taken
            write_lineage(paths[1], lineage_of(after, batch, recording.groups, adapter=adapter, recording=stored.batch))
        checkpoint = await asyncio.to_thread(folder_ref, f"{name}.checkpoint", paths[1])
    return _as_stored(after, stored), StepComparison(
        after.version, adapter.sha256, stored.adapter.blob.sha256, checkpoint.sha256, stored.checkpoint.sha256
    )


def _as_stored(resident: Resident, stored: StoredStep) -> Resident:
    """With what the trainer then knew of its checkpoints."""
    return replace(resident, stored_at=resident.version) if stored.checkpoint.since is None else resident


def _listed(stored: Mapping[int, StoredStep]) -> str:
    return f"{min(stored)} to {max(stored)}" if stored else "none"
