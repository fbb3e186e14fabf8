"""Steps: scheduler → trainer → scheduler and every rollout replica."""

from typing import ClassVar

from pydantic import Field

from common.messages.artifacts import AdapterRef, BlobRef, CheckpointRef
from common.messages.base import Message, Value
from common.spec import TaskSpec


class BatchMember(Value):
    member: int
    sequence: int
    """Of the scored message in its stream; only this one counts, later duplicates do not."""
    reward: float


class BatchGroup(Value):
    group: int
    version: int
    """Of the policy that sampled it."""
    members: list[BatchMember]


class TrainBatch(Message):
    """Take the optimizer step from `version` to `version + 1` with exactly these trajectories."""

    kind: ClassVar[str] = "train-batch.1"
    tenant: str
    task: str
    pool: str
    version: int = Field(ge=0)
    spec: TaskSpec
    checkpoint: BlobRef | None
    """Of `version`; None at version 0, which is made from `start`, or else from the spec's seed."""
    start: AdapterRef | None = None
    """The adapter of version 0; None for a task that starts afresh."""
    groups: list[BatchGroup] = Field(min_length=1)


class WeightUpdated(Message):
    """A step was taken; its adapter and checkpoint are in the blob store."""

    kind: ClassVar[str] = "weight-updated.1"
    tenant: str
    task: str
    pool: str
    version: int = Field(ge=1)
    """Of the new adapter."""
    adapter: AdapterRef
    checkpoint: CheckpointRef
    batch: BlobRef | None = None
    """The trajectories that were trained; None unless the task keeps them, or the checkpoint is recomputed from them."""
    metrics: dict[str, float]
    trained_tokens: int
    """Padding not counted."""
    started_s: float
    finished_s: float
    """Unix times of the step."""
