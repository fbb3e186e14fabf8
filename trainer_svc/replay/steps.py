"""Replay of recorded steps: the recomputed blobs' digests are compared with the stored ones.

A step is named by the version that it made. Tasks with `keep.batches` record their steps. On a CPU with the trainer's number
of threads the digests are equal; other hardware rounds differently.
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
    """Stored blobs of each step of the task, by the version that it made. Raises: Retry when NATS is unavailable."""
    found: dict[int, StoredStep] = {}
    for subject in await bus.streams.subjects(streams.EVENTS, streams.events("*", task)):
        async for delivery in bus.streams.stored(streams.EVENTS, subject):
            stored = StoredStep.of(delivery.read(Event))
            if stored is not None:
                found.setdefault(stored.adapter.version, stored)
    return found


async def replay_all(bus: Bus, learner: Learner, task: str) -> AsyncIterator[StepComparison]:
    """Replay every step from version 0, each from the state recomputed here, so that only recorded batches are trusted.

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
    """Replay the step that made `version`, from the stored state before it or from earlier steps, recomputed.

    Raises: Reject when it is not recorded, or no earlier state can be reached.
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
    """State before the step; None if its checkpoint is no longer kept."""
    batch = recording.batch
    if batch.checkpoint is not None and batch.checkpoint.name not in await Blobs(bus).names():
        return None
    return await restore(Blobs(bus), learner, batch)


async def _replay(learner: Learner, resident: Resident, recording: Recording, stored: StoredStep) -> tuple[Resident, StepComparison]:
    """Recompute the step and the digests of its blobs; returns the new state and the comparison."""
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
    """The state with `stored_at` as the trainer had it."""
    return replace(resident, stored_at=resident.version) if stored.checkpoint.since is None else resident


def _listed(stored: Mapping[int, StoredStep]) -> str:
    return f"{min(stored)} to {max(stored)}" if stored else "none"
