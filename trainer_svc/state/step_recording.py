"""Recorded steps: batches from which steps are replayed, and the lineage from which an unstored state is recomputed.

    batch.msgpack.z   the TrainBatch and its trajectories as trained, MessagePack inside zlib
    lineage.json      instead of a checkpoint's two files: the inputs of a version, and the digests that prove the result

The scored messages are deleted after their step. A recording keeps their content: all inputs of the step besides the state before it. Its
batch names the previous checkpoint, and so on down to a stored state. A lineage is a blob like any other checkpoint: the next batch
names it, and it identifies a resident state.
"""

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from common.errors import Reject
from common.messages import BlobRef, TrainBatch
from common.spec import TaskSpec
from trainer_svc.batch import Group, Trajectory
from trainer_svc.state.checkpoint import VECTORS, Origin, spec_digest
from trainer_svc.state.resident import Resident

BATCH_FILE = "batch.msgpack.z"
BATCH_BYTES, MEMBER_BYTES, TOKEN_BYTES = 2**20, 4096, 9
"""Bytes before compression of a recording's message, of each member's numbers, and of each token."""
COMPRESSION = 1
"""Compression level of zlib: token ids shrink to a third; higher levels gain little."""


LINEAGE_FILE = "lineage.json"


@dataclass(frozen=True, eq=False)
class Recording:
    """A step's batch message and its trajectories."""

    batch: TrainBatch
    groups: list[Group]


def origin_of(batch: TrainBatch, groups: Sequence[Group]) -> Origin:
    """Digests of the inputs of the version after `batch`."""
    return Origin(parent_sha256=batch.checkpoint.sha256 if batch.checkpoint else None, trained_sha256=trained_digest(groups))


def trained_digest(groups: Sequence[Group]) -> str:
    """SHA-256 of a step's trajectories, independent of the messages that carried them."""
    return hashlib.sha256(_packed([_as_dict(group) for group in groups])).hexdigest()


def write_recording(folder: Path, recording: Recording) -> None:
    """Write `recording` into `folder`; equal steps give equal bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"batch": recording.batch.encode(), "groups": [_as_dict(group) for group in recording.groups]}
    (folder / BATCH_FILE).write_bytes(zlib.compress(_packed(content), COMPRESSION))


def read_recording(folder: Path, spec: TaskSpec | None = None) -> Recording:
    """Recording in `folder`. `spec`: of the task, which limits the unpacked size; None if the caller trusts the blob store.

    Raises: Reject if it is missing, damaged, larger than a step of the task can be, or of an unknown kind.
    """
    try:
        content: dict[str, Any] = msgpack.unpackb(_unpacked((folder / BATCH_FILE).read_bytes(), _room(spec) if spec else 0))
        return Recording(TrainBatch.decode(content["batch"]), [_group(group) for group in content["groups"]])
    except (OSError, zlib.error, ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        raise Reject(f"recorded batch: {BATCH_FILE} cannot be read: {error!r}") from None


def _room(spec: TaskSpec) -> int:
    """Maximum bytes of a recording of the task's steps, with a margin for the template's additions to prompts."""
    members = spec.algorithm.groups_per_step * spec.algorithm.group_size
    return BATCH_BYTES + 4 * members * (TOKEN_BYTES * spec.trajectory_tokens + MEMBER_BYTES)


def _unpacked(compressed: bytes, room: int) -> bytes:
    """Decompressed content of at most `room` bytes; 0: no limit. Raises: Reject if there are more; zlib.error."""
    unpacking = zlib.decompressobj()
    content = unpacking.decompress(compressed, room)
    if not unpacking.eof:
        raise Reject(f"recorded batch: {BATCH_FILE} is cut off, or unpacks to more than the {room} bytes that a step of this task may have")
    return content


def _packed(content: object) -> bytes:
    packed = msgpack.packb(content)
    assert packed is not None
    return packed


def _as_dict(group: Group) -> dict[str, Any]:
    return {
        "group": group.group,
        "staleness": group.staleness,
        "trajectories": [
            {
                "member": one.member,
                "ids": one.ids_T.astype("<i4").tobytes(),
                "sampled": one.sampled_T.astype(np.uint8).tobytes(),
                "logprobs": one.sampler_logprobs_T.astype("<f4").tobytes(),
                "reward": one.reward,
                "truncated": one.truncated,
                "components": dict(sorted(one.components.items())),
            }
            for one in group.trajectories
        ],
    }


def _group(kept: dict[str, Any]) -> Group:
    return Group(kept["group"], kept["staleness"], tuple(_trajectory(one) for one in kept["trajectories"]))


def _trajectory(kept: dict[str, Any]) -> Trajectory:
    return Trajectory(
        kept["member"],
        np.frombuffer(kept["ids"], dtype="<i4"),
        np.frombuffer(kept["sampled"], dtype=np.uint8),
        np.frombuffer(kept["logprobs"], dtype="<f4"),
        kept["reward"],
        kept["truncated"],
        kept["components"],
    )


class Lineage(BaseModel):
    """Lineage of one version. Digests are SHA-256."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = 3
    """Continues the numbering of `checkpoint.Manifest`'s formats."""
    task: str
    version: int
    since: int
    """Latest earlier version whose state is stored; 0: version 0, which is derived from the spec."""
    spec_sha256: str
    parent_sha256: str | None
    """Digest of the previous checkpoint."""
    trained_sha256: str
    """Digest of the trained trajectories."""
    recording: BlobRef
    """Blob of the trained trajectories."""
    adapter: BlobRef
    vectors_sha256: str
    """Digest of masters and moments: `vectors_digest`."""


def lineage_of(resident: Resident, batch: TrainBatch, groups: Sequence[Group], *, adapter: BlobRef, recording: BlobRef) -> Lineage:
    """Lineage of `resident`, which the step of `batch` produced."""
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
    """Lineage in `folder`; None for a checkpoint with the whole state. Raises: Reject if it is damaged; disk errors unchanged."""
    path = folder / LINEAGE_FILE
    if not path.is_file():
        return None
    try:
        return Lineage.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise Reject(f"checkpoint: {LINEAGE_FILE} cannot be read: {error}") from None
