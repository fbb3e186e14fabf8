"""Checkpoints: the whole training state of a version, as one immutable folder.

    state.safetensors   params.<module>.lora_A … exp_avg.… exp_avg_sq.…   float32
    manifest.json       task, version, spec, and the digests that prove the state

A run resumed from a checkpoint equals an uninterrupted run, bit for bit on a CPU. Each manifest contains the digests of the previous
checkpoint and of the trajectories in between, so the last one proves the whole chain.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from common.errors import Reject
from common.spec import TaskSpec
from trainer_svc.device.errors import IO_ERROR
from trainer_svc.model.lora import Layout, LoraModule
from trainer_svc.state.optimizer import OptimizerState, Skips, learning_rate
from trainer_svc.state.resident import Resident

STATE_FILE = "state.safetensors"
MANIFEST_FILE = "manifest.json"
VECTORS = ("params", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Origin:
    """Digests of a version's inputs."""

    parent_sha256: str | None
    """Digest of the checkpoint before the step; None at version 0, which is derived from the spec alone."""
    trained_sha256: str
    """Digest of the trained trajectories: `step_recording.trained_digest`."""


class Manifest(BaseModel):
    """Metadata of a task at a version, its tensors by their digests.

    There is no generator state: training draws no random numbers, and sampling's seeds follow from the spec's seed and the group's
    number. Checkpoints of format 1 lack the fields that default to None.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = 1
    task: str
    version: int
    """Steps trained; also the position in the learning-rate schedule."""
    spec: dict[str, JsonValue] | None = None
    """Fields of the task's spec that differ from their defaults, including its seed."""
    spec_sha256: str
    parent_sha256: str | None = None
    trained_sha256: str | None = None
    next_group: int | None = None
    """Data cursor: one more than the highest group ever trained. Groups sampled ahead of it are known to the scheduler."""
    optimizer_steps: int
    learning_rate: float
    """Learning rate of the next step."""
    rank: int
    alpha: float
    rank_stabilized: bool = False
    modules: list[tuple[str, int, int]]
    """(name, inputs, outputs), in the order of the vectors."""
    state_sha256: str
    adapter_sha256: str | None = None
    """Digest of the weights that engines load, in the base model's precision."""
    skips: Skips | None = None
    """Skipped updates; omitted if there were none, so that such a state has the same bytes as before this field existed."""


def write_checkpoint(folder: Path, resident: Resident, spec: TaskSpec, origin: Origin, adapter: Path) -> None:
    """Write `resident`, whose adapter is the file `adapter`, into `folder`; equal state and origin give equal bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    state, layout = resident.optimizer, resident.layout
    tensors: dict[str, Tensor] = {}
    for vector in VECTORS:
        for name, pair in layout.views(getattr(state, vector).detach().to("cpu")).items():
            tensors[f"{vector}.{name}.lora_A"] = pair.a.contiguous().clone()
            tensors[f"{vector}.{name}.lora_B"] = pair.b.contiguous().clone()
    save_file(tensors, folder / STATE_FILE, metadata={"format": "pt"})
    manifest = Manifest(
        format=2,
        task=resident.task,
        version=resident.version,
        spec=_beyond_defaults(spec),
        spec_sha256=spec_digest(spec),
        parent_sha256=origin.parent_sha256,
        trained_sha256=origin.trained_sha256,
        next_group=resident.next_group,
        optimizer_steps=state.steps,
        learning_rate=learning_rate(spec.optimizer, resident.version, spec.steps),
        rank=layout.rank,
        alpha=layout.alpha,
        rank_stabilized=layout.rank_stabilized,
        modules=[(module.name, module.inputs, module.outputs) for module in layout.modules],
        state_sha256=_file_digest(folder / STATE_FILE),
        adapter_sha256=_file_digest(adapter),
        skips=resident.skips if resident.skips.updates else None,
    )
    (folder / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=2, exclude=None if manifest.skips else {"skips"}) + "\n")


def read_checkpoint(folder: Path, task: str, version: int, spec: TaskSpec, device: torch.device) -> Resident:
    """State in `folder`. Raises: Reject if it is damaged, or of another task, version or spec; disk errors unchanged."""
    manifest = read_manifest(folder)
    skips = manifest.skips or Skips()
    found = (manifest.task, manifest.version, manifest.optimizer_steps + skips.updates, manifest.spec_sha256)
    expected = (task, version, version * spec.algorithm.passes * spec.algorithm.minibatches, spec_digest(spec))
    if found != expected:
        raise Reject(f"checkpoint is of (task, version, updates, spec) {found}, expected {expected}")
    layout = Layout(manifest.rank, manifest.alpha, tuple(LoraModule(*module) for module in manifest.modules), manifest.rank_stabilized)
    try:
        if _file_digest(folder / STATE_FILE) != manifest.state_sha256:
            raise Reject(f"checkpoint of task {task} version {version}: {STATE_FILE} is damaged")
        tensors = load_file(folder / STATE_FILE)
        vectors = {vector: _vector(layout, tensors, vector).to(device) for vector in VECTORS}
    except (FileNotFoundError, KeyError, SafetensorError) as error:
        if IO_ERROR in str(error):
            raise
        raise Reject(f"checkpoint of task {task} version {version}: {STATE_FILE} cannot be read: {error!r}") from None
    state = OptimizerState(**vectors, steps=manifest.optimizer_steps)
    return Resident(task, layout, state, version, manifest.next_group or 0, stored_at=version, skips=skips)


def read_manifest(folder: Path) -> Manifest:
    """Manifest in `folder`. Raises: Reject if it is missing or damaged; disk errors unchanged."""
    try:
        return Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
    except (FileNotFoundError, ValidationError) as error:
        raise Reject(f"checkpoint: {MANIFEST_FILE} cannot be read: {error}") from None


def spec_digest(spec: TaskSpec) -> str:
    """SHA-256 of the fields that differ from their defaults, so that a new optional field changes no digest."""
    return hashlib.sha256(json.dumps(_beyond_defaults(spec), sort_keys=True).encode()).hexdigest()


def _beyond_defaults(spec: TaskSpec) -> dict[str, JsonValue]:
    """Fields that differ from their defaults.

    To keep older tasks' digests, `keep.adapters` is compared with its original default, `all`, and `evaluation.decide_by`, on which
    no step depends, is excluded: the scheduler adds it to older tasks.
    """
    said = spec.model_dump(mode="json", exclude_defaults=True)
    keep = {name: value for name, value in said.pop("keep", {}).items() if name != "adapters"}
    if spec.keep.adapters != "all":
        keep["adapters"] = spec.keep.adapters
    evaluation = {name: value for name, value in said.pop("evaluation", {}).items() if name != "decide_by"}
    return said | ({"keep": keep} if keep else {}) | ({"evaluation": evaluation} if evaluation else {})


def _vector(layout: Layout, tensors: dict[str, Tensor], vector: str) -> Tensor:
    names = [f"{vector}.{module.name}.{matrix}" for module in layout.modules for matrix in ("lora_A", "lora_B")]
    return torch.cat([tensors[name].flatten() for name in names])


def _file_digest(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
