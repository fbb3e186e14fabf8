"""Lineage: the inputs that a version's unstored state is recomputed from, and the digests that prove the result.

    lineage.json   instead of a checkpoint's two files

The recording that it names holds the step's batch, which names the previous checkpoint, and so on down to a stored state. It is
a blob like any other checkpoint: the next batch names it, and it identifies a resident state.
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
    """Lineage of one version. Digests are SHA-256."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = 3
    """Number after the formats of `checkpoint.Manifest`."""
    task: str
    version: int
    since: int
    """Latest earlier version whose state is stored; 0: version 0, which the spec makes."""
    spec_sha256: str
    parent_sha256: str | None
    """Digest of the previous checkpoint."""
    trained_sha256: str
    """Digest of the trained trajectories."""
    recording: BlobRef
    """Blob of those trajectories."""
    adapter: BlobRef
    vectors_sha256: str
    """Digest of masters and moments: `vectors_digest`."""


def lineage_of(resident: Resident, batch: TrainBatch, groups: Sequence[Group], *, adapter: BlobRef, recording: BlobRef) -> Lineage:
    """Lineage of `resident`, which the step of `batch` made."""
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
    """SHA-256 of masters and moments, float32, concatenated."""
    digest = hashlib.sha256()
    for name in VECTORS:
        digest.update(getattr(resident.optimizer, name).detach().to("cpu").contiguous().numpy().data)
    return digest.hexdigest()


def write_lineage(folder: Path, lineage: Lineage) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LINEAGE_FILE).write_text(lineage.model_dump_json(indent=2) + "\n")


def read_lineage(folder: Path) -> Lineage | None:
    """None for a checkpoint that holds the state. Raises: Reject when it is damaged; the disk's errors as they are."""
    path = folder / LINEAGE_FILE
    if not path.is_file():
        return None
    try:
        return Lineage.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise Reject(f"checkpoint: {LINEAGE_FILE} cannot be read: {error}") from None
