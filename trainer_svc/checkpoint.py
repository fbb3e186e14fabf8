"""Checkpoints: everything that the next step needs, one immutable folder for each version.

    state.safetensors   params.<module>.lora_A … exp_avg.… exp_avg_sq.…   float32
    manifest.json       task, version, spec digest, optimizer counters, digest of the state file

A run that goes on from one equals a run that never stopped, bit for bit on a CPU.
"""

import hashlib
import json
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from common.errors import Reject
from common.spec import TaskSpec
from trainer_svc.lora import Layout, LoraModule
from trainer_svc.optimizer import OptimizerState, learning_rate
from trainer_svc.resident import Resident

STATE_FILE = "state.safetensors"
MANIFEST_FILE = "manifest.json"
VECTORS = ("params", "exp_avg", "exp_avg_sq")


class Manifest(BaseModel):
    """What the state file holds, and whose it is."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = 1
    task: str
    version: int
    spec_sha256: str
    optimizer_steps: int
    learning_rate: float
    """Of the next step."""
    rank: int
    alpha: float
    rank_stabilized: bool = False
    modules: list[tuple[str, int, int]]
    """(name, inputs, outputs), in the order of the vectors."""
    state_sha256: str


def write_checkpoint(folder: Path, resident: Resident, spec: TaskSpec) -> None:
    """Write `resident` into `folder`, byte for byte the same for the same state."""
    folder.mkdir(parents=True, exist_ok=True)
    state, layout = resident.optimizer, resident.layout
    tensors: dict[str, Tensor] = {}
    for vector in VECTORS:
        for name, pair in layout.views(getattr(state, vector).detach().to("cpu")).items():
            tensors[f"{vector}.{name}.lora_A"] = pair.a.contiguous().clone()
            tensors[f"{vector}.{name}.lora_B"] = pair.b.contiguous().clone()
    save_file(tensors, folder / STATE_FILE, metadata={"format": "pt"})
    manifest = Manifest(
        task=resident.task,
        version=resident.version,
        spec_sha256=spec_digest(spec),
        optimizer_steps=state.steps,
        learning_rate=learning_rate(spec.optimizer, resident.version, spec.steps),
        rank=layout.rank,
        alpha=layout.alpha,
        rank_stabilized=layout.rank_stabilized,
        modules=[(module.name, module.inputs, module.outputs) for module in layout.modules],
        state_sha256=_file_digest(folder / STATE_FILE),
    )
    (folder / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=2) + "\n")


def read_checkpoint(folder: Path, task: str, version: int, spec: TaskSpec, device: torch.device) -> Resident:
    """The state in `folder`. Raises: Reject when it is damaged, or of another task, version or spec."""
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
    except (OSError, ValidationError) as error:
        raise Reject(f"checkpoint of task {task} version {version}: {MANIFEST_FILE} cannot be read: {error}") from None
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
    except (OSError, KeyError, SafetensorError) as error:
        raise Reject(f"checkpoint of task {task} version {version}: {STATE_FILE} cannot be read: {error!r}") from None
    return Resident(task, layout, OptimizerState(**vectors, steps=manifest.optimizer_steps), version)


def spec_digest(spec: TaskSpec) -> str:
    """Of what the task says beyond the defaults, so that a new optional field changes no digest."""
    canonical = json.dumps(spec.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _vector(layout: Layout, tensors: dict[str, Tensor], vector: str) -> Tensor:
    names = [f"{vector}.{module.name}.{matrix}" for module in layout.modules for matrix in ("lora_A", "lora_B")]
    return torch.cat([tensors[name].flatten() for name in names])


def _file_digest(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
