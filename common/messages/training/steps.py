"""Steps: scheduler → trainer → scheduler and every rollout replica."""

import hashlib
import json

from pydantic import Field

from common.fairness.fair_queue import Claimant
from common.messages.artifacts import SHA256_PATTERN, AdapterRef, BlobRef, CheckpointRef
from common.messages.base import Message, Value
from common.spec import TaskSpec


class BatchMember(Value):
    member: int
    sequence: int
    """Position of the scored message in its stream; later duplicates do not count."""
    reward: float


class BatchGroup(Value):
    group: int
    version: int
    """Version of the policy that sampled it."""
    members: list[BatchMember]


class TrainBatch(Message, kind="train-batch.1"):
    """Take the optimizer step from `version` to `version + 1` with exactly these trajectories."""

    tenant: str
    task: str
    pool: str
    version: int = Field(ge=0)
    spec: TaskSpec
    checkpoint: BlobRef | None
    """Checkpoint of `version`; None at version 0, which is made from `start`, or else from the spec's seed."""
    start: AdapterRef | None = None
    """Adapter of version 0; None without a `start`."""
    groups: list[BatchGroup] = Field(min_length=1)
    weight: float = Field(gt=0)
    """As in GroupContext, when the step was sent."""

    @property
    def claimant(self) -> Claimant:
        return Claimant(self.tenant, self.task, self.weight)

    @property
    def digest(self) -> str:
        """SHA-256 of what the step is made from: the task's version, the state before it, and its trajectories. Equal when it is resent."""
        before = [ref and ref.sha256 for ref in (self.checkpoint, self.start and self.start.blob)]
        groups = [[one.group, one.version, [[each.member, each.sequence, each.reward] for each in one.members]] for one in self.groups]
        return hashlib.sha256(json.dumps([self.task, self.version, before, groups]).encode()).hexdigest()


class WeightUpdated(Message, kind="weight-updated.1"):
    """A step was taken; its adapter and checkpoint are in the blob store."""

    tenant: str
    task: str
    pool: str
    version: int = Field(ge=1)
    """Version of the new adapter."""
    adapter: AdapterRef
    checkpoint: CheckpointRef
    trained: str = Field(pattern=SHA256_PATTERN)
    """`TrainBatch.digest` of the batch that was trained."""
    batch: BlobRef | None = None
    """Trained trajectories; None unless the task keeps them, or the checkpoint is recomputed from them."""
    metrics: dict[str, float]
    trained_tokens: int
    """Tokens without padding."""
    started_s: float
    finished_s: float
    """Unix times of the step."""
