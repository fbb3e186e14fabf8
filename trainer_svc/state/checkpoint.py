"""Checkpoints: everything that the next step needs, one immutable folder for each version.

    state.safetensors   params.<module>.lora_A … exp_avg.… exp_avg_sq.…   float32
    manifest.json       what the state is of, where it stands, and the digests that prove it

A run that goes on from one equals a run that never stopped, bit for bit on a CPU. Each manifest names the digest of the
checkpoint before it and of the trajectories in between, so whoever has the last one can tell whether the others are true.
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
from trainer_svc.device_errors import IO_ERROR
from trainer_svc.model.lora import Layout, LoraModule
from trainer_svc.state.optimizer import OptimizerState, learning_rate
from trainer_svc.state.resident import Resident

STATE_FILE = "state.safetensors"
MANIFEST_FILE = "manifest.json"
VECTORS = ("params", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Origin:
    """What a version was made of."""

    parent_sha256: str | None
    """Of the checkpoint that the step went on from; None at version 0, which the spec alone makes."""
    trained_sha256: str
    """Of the trajectories that the step trained: `recording.trained_digest`."""


class Manifest(BaseModel):
    """Everything that defines a task at a version, the tensors by their digests.

    There is no generator state: training draws no random numbers, and what sampling draws follows from the spec's seed and
    the number of the group. Fields that are None are of checkpoints of format 1, which did not have them.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = 1
    task: str
    version: int
    """Also the position in the schedule of the learning rate."""
    spec: dict[str, JsonValue] | None = None
    """What the task says beyond the defaults, its seed among it."""
    spec_sha256: str
    parent_sha256: str | None = None
    trained_sha256: str | None = None
    next_group: int | None = None
    """The data cursor: one more than the highest group that was ever trained. Groups sampled ahead of it are the scheduler's."""
    optimizer_steps: int
    learning_rate: float
    """Of the next step."""
    rank: int
    alpha: float
    rank_stabilized: bool = False
    modules: list[tuple[str, int, int]]
    """(name, inputs, outputs), in the order of the vectors."""
    state_sha256: str
    adapter_sha256: str | None = None
    """Of the weights that engines load, in the base model's precision."""


def write_checkpoint(folder: Path, resident: Resident, spec: TaskSpec, origin: Origin, adapter: Path) -> None:
    """Write `resident`, whose adapter is the file `adapter`, into `folder`; byte for byte the same for the same state and origin."""
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
    )
    (folder / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=2) + "\n")


def read_checkpoint(folder: Path, task: str, version: int, spec: TaskSpec, device: torch.device) -> Resident:
    """The state in `folder`. Raises: Reject when it is damaged, or of another task, version or spec; the disk's own errors go through."""
    manifest = read_manifest(folder)
    found = (manifest.task, manifest.version, manifest.optimizer_steps, manifest.spec_sha256)
    expected = (task, version, version * spec.algorithm.passes * spec.algorithm.minibatches, spec_digest(spec))
    if found != expected:
        raise Reject(f"checkpoint is of (task, version, optimizer steps, spec) {found}, expected {expected}")
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
    return Resident(task, layout, OptimizerState(**vectors, steps=manifest.optimizer_steps), version, manifest.next_group or 0, version)


def read_manifest(folder: Path) -> Manifest:
    """Raises: Reject when there is none, or it is damaged; the disk's own errors go through."""
    try:
        return Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
    except (FileNotFoundError, ValidationError) as error:
        raise Reject(f"checkpoint: {MANIFEST_FILE} cannot be read: {error}") from None


def spec_digest(spec: TaskSpec) -> str:
    """Of what the task says beyond the defaults, so that a new optional field changes no digest."""
    return hashlib.sha256(json.dumps(_beyond_defaults(spec), sort_keys=True).encode()).hexdigest()


def _beyond_defaults(spec: TaskSpec) -> dict[str, JsonValue]:
    """Of `keep.adapters` beyond its first default, `all`: a task that was stored then must still know its checkpoints."""
    said = spec.model_dump(mode="json", exclude_defaults=True)
    keep = {name: value for name, value in said.pop("keep", {}).items() if name != "adapters"}
    if spec.keep.adapters != "all":
        keep["adapters"] = spec.keep.adapters
    return said | ({"keep": keep} if keep else {})


def _vector(layout: Layout, tensors: dict[str, Tensor], vector: str) -> Tensor:
    names = [f"{vector}.{module.name}.{matrix}" for module in layout.modules for matrix in ("lora_A", "lora_B")]
    return torch.cat([tensors[name].flatten() for name in names])


def _file_digest(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
