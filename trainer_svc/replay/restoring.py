"""Restoring a task's state that is not in memory: from its checkpoint, or from an earlier one and the recorded steps after it.

A recomputed state has the recorded digest on a CPU with the same threads and PyTorch. Elsewhere rounding differs: digests then
prove the inputs, and the adapter must equal the stored one within MAX_ADAPTER_DIFFERENCE.
"""

import asyncio

import structlog
import torch
from prometheus_client import Counter

from common.blobs import Blobs
from common.errors import Reject
from common.messages import TrainBatch
from common.spec import TaskSpec
from trainer_svc.device.errors import scratch_folder
from trainer_svc.learner import Learner
from trainer_svc.model.adapter import read_adapter
from trainer_svc.state.checkpoint import spec_digest
from trainer_svc.state.lineage import Lineage, read_lineage, vectors_digest
from trainer_svc.state.resident import Resident
from trainer_svc.state.step_recording import Recording, read_recording, trained_digest

MAX_ADAPTER_DIFFERENCE = 0.5
"""Maximum norm of recomputed minus stored adapter, as a share of the step's change. Adapters of different steps differ by more than 1."""
STORED_PRECISION = 2**-8
"""Rounding of a stored adapter in bfloat16, as a share of its norm."""

RESTORED = Counter("marlaas_trainer_restored_total", "Checkpoints read because the task was not resident")
RECOMPUTED = Counter("marlaas_trainer_recomputed_total", "Steps recomputed because the state after them was lost and not stored")

log = structlog.get_logger()


async def restore(blobs: Blobs, learner: Learner, batch: TrainBatch) -> Resident:
    """State of `batch.version`. Raises: Reject when a blob is gone, damaged, or of another task, version or spec."""
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
    """Version 0, from the spec's seed or from another task's adapter. Raises: Reject when that is gone, or has another shape."""
    if batch.start is None:
        return await learner.begin(batch.task, batch.spec)
    with scratch_folder("start") as folder:
        return await learner.begin(batch.task, batch.spec, await blobs.fetch_folder(batch.start.blob, folder / "adapter"))


async def _recompute(blobs: Blobs, learner: Learner, lineage: Lineage, spec: TaskSpec) -> Resident:
    where = f"task {lineage.task} version {lineage.version}"
    recording = await _recording(blobs, lineage, spec)
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


async def _recording(blobs: Blobs, lineage: Lineage, spec: TaskSpec) -> Recording:
    with scratch_folder("batch") as folder:
        return await asyncio.to_thread(read_recording, await blobs.fetch_folder(lineage.recording, folder / "batch"), spec)


async def _require_equal_but_for_rounding(where: str, blobs: Blobs, lineage: Lineage, before: Resident, after: Resident) -> None:
    """Raises: Reject when the recomputed adapter differs from the stored one by more than rounding."""
    with scratch_folder("adapter") as folder:
        fetched = await blobs.fetch_folder(lineage.adapter, folder / "adapter")
        stored = await asyncio.to_thread(read_adapter, fetched, after.layout)
    old, new = before.optimizer.params.cpu(), after.optimizer.params.cpu()
    difference, change = (float(torch.linalg.vector_norm(stored - other)) for other in (new, old))
    bound = MAX_ADAPTER_DIFFERENCE * change + STORED_PRECISION * float(torch.linalg.vector_norm(stored))
    if difference > bound:
        raise Reject(f"{where}: recomputed, its adapter differs from the stored one by {difference:.3g}; rounding explains {bound:.3g}")
    log.warning("step_recomputed_otherwise", version=lineage.version, difference=difference, change=change)
