"""Versions whose state is not stored: what it is recomputed from, and the digests that prove that it came out the same.

    lineage.json   instead of a checkpoint's two files

The recording that it names holds the step's batch, which names the checkpoint before it. So one leads to the next, down to a stored
state. A blob like any other checkpoint, it is what the next batch names and what tells one resident state from another.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from common.errors import Reject
from common.messages import BlobRef, TrainBatch
from trainer_svc.batch import Group
from trainer_svc.state.checkpoint import VECTORS, spec_digest
from trainer_svc.state.resident import Resident
from trainer_svc.state.step_recording import origin_of

LINEAGE_FILE = "lineage.json"


class Lineage(BaseModel):
    """One version. Digests are SHA-256."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = 3
    """The next after those of `checkpoint.Manifest`."""
    task: str
    version: int
    since: int
    """Latest version before it whose state is stored; 0: version 0, which the spec makes."""
    spec_sha256: str
    parent_sha256: str | None
    """Of the checkpoint before it."""
    trained_sha256: str
    """Of the trajectories in between."""
    recording: BlobRef
    """Those trajectories."""
    adapter: BlobRef
    vectors_sha256: str
    """Of masters and moments: `vectors_digest`."""


def lineage_of(resident: Resident, batch: TrainBatch, groups: Sequence[Group], *, adapter: BlobRef, recording: BlobRef) -> Lineage:
    """Of `resident`, which the step of `batch` made."""
    origin = origin_of(batch, groups)
    return Lineage(
        task=batch.task,
        version=resident.version,
        since=resident.stored_at,
        spec_sha256=spec_digest(batch.spec),
        parent_sha256=origin.parent_sha256,
        trained_sha256=origin.trained_sha256,
        recording=recording,
        adapter=adapter,
        vectors_sha256=vectors_digest(resident),
    )


def vectors_digest(resident: Resident) -> str:
    """Of masters and moments, float32, one after the other."""
    digest = hashlib.sha256()
    for name in VECTORS:
        digest.update(getattr(resident.optimizer, name).detach().to("cpu").contiguous().numpy().data)
    return digest.hexdigest()


def write_lineage(folder: Path, lineage: Lineage) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LINEAGE_FILE).write_text(lineage.model_dump_json(indent=2) + "\n")


def read_lineage(folder: Path) -> Lineage | None:
    """None for a checkpoint that holds the state itself. Raises: Reject when it is damaged; the disk's own errors go through."""
    path = folder / LINEAGE_FILE
    if not path.is_file():
        return None
    try:
        return Lineage.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise Reject(f"checkpoint: {LINEAGE_FILE} cannot be read: {error}") from None
