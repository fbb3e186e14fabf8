"""Trajectories: from sampler to environment service to scheduler and trainer. Steps: from scheduler to trainer, back to the scheduler, and
to every rollout replica.
"""

import hashlib
import json
import math
from collections.abc import Container, Mapping
from typing import Literal

from pydantic import Field

from common.fairness.fair_queue import Claimant
from common.messages.artifacts import SHA256_PATTERN, AdapterRef, BlobRef, CheckpointRef, TokenRecord
from common.messages.base import Message, Sentence, Value
from common.messages.prompts import GroupContext
from common.spec import TaskSpec
from common.tool_calls import UNOPENED, Thoughts

UNSUPPORTED = "unsupported by the sandbox"
"""Prefix of the failure of an attempt that this deployment cannot grade; the scheduler counts such failures separately."""


class SampledTurn(Value):
    """One member's sampled turn, or the reason why it could not be sampled."""

    member: int = Field(ge=0)
    turn: int = Field(ge=0)
    transcript: TokenRecord
    """All tokens so far, this turn's included."""
    reply: str
    """The turn's text, without the end-of-turn token."""
    finish: Literal["stop", "length"]
    """Whether the policy ended the turn or the token limit did."""
    state: bytes
    failure: str | None = None
    """Reason why the turn could not be sampled: an infrastructure failure, or limits that the prompt exceeds."""
    env_ms: float = Field(default=0.0, ge=0)
    """As in TurnRequest, like `away_ms`."""
    away_ms: float = Field(default=0.0, ge=0)
    thoughts: Thoughts = Field(default=UNOPENED, exclude_if=lambda thoughts: thoughts == UNOPENED)
    """Position of reasoning in `reply`."""


class TurnsSampled(Message, kind="turns-sampled.1"):
    group: GroupContext
    members: list[SampledTurn] = Field(min_length=1)


class ScoredTrajectory(Value):
    """One finished attempt. If `failure` is set, it has no reward and is void, never reward 0."""

    member: int = Field(ge=0)
    transcript: TokenRecord
    reward: float = Field(allow_inf_nan=False)
    components: dict[str, float] = {}
    turns: int = Field(ge=0)
    truncated: bool = False
    """Whether the last turn hit its token limit."""
    failure: str | None = None
    env_ms: int = Field(ge=0, lt=2**31)
    """Milliseconds that worker and hosted processes worked for the attempt."""
    away_ms: int = Field(ge=0, lt=2**31)
    """Milliseconds that the attempt spent in its environment."""


class SettledMember(Value):
    member: int
    reward: float = Field(allow_inf_nan=False)
    prompt_tokens: int
    sampled_tokens: int
    turns: int
    truncated: bool = False
    failure: Sentence | None = None
    longest_turn_tokens: int
    """Sampled tokens of the longest turn."""
    components: dict[str, float] = {}
    """Finite components of the reward by which the task ranks."""
    env_ms: int = Field(ge=0, lt=2**31)
    """As in ScoredTrajectory, like `away_ms`."""
    away_ms: int = Field(ge=0, lt=2**31)


class Settlement(Value):
    """The scheduler's extract of a scored message, a JSON header (`streams.SETTLEMENT_HEADER`)."""

    task: str
    group: int
    version: int
    """Version of the policy that sampled the group."""
    members: list[SettledMember] = Field(min_length=1)


class TrajectoriesScored(Message, kind="trajectories-scored.1"):
    """Scored attempts, read by the trainer by stream sequence; the scheduler reads only the `Settlement` header."""

    group: GroupContext
    members: list[ScoredTrajectory] = Field(min_length=1)

    def settlement(self) -> "Settlement":
        return Settlement(
            task=self.group.task,
            group=self.group.group,
            version=self.group.version,
            members=[
                SettledMember(
                    member=member.member,
                    reward=member.reward,
                    prompt_tokens=len(member.transcript) - member.transcript.sampled_tokens,
                    sampled_tokens=member.transcript.sampled_tokens,
                    turns=member.turns,
                    truncated=member.truncated,
                    failure=member.failure,
                    longest_turn_tokens=member.transcript.longest_turn_tokens,
                    env_ms=member.env_ms,
                    away_ms=member.away_ms,
                    components=_finite(member.components, self.group.environment.rank_weights),
                )
                for member in self.members
            ],
        )


def _finite(components: Mapping[str, float], names: Container[str]) -> dict[str, float]:
    """The finite components among `names`: JSON cannot express other numbers."""
    return {name: value for name, value in components.items() if name in names and math.isfinite(value)}


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
    """Checkpoint of `version`; None at version 0, which is initialized from `start`, or else from the spec's seed."""
    start: AdapterRef | None = None
    """Adapter of version 0; None without a `start`."""
    groups: list[BatchGroup] = Field(min_length=1)
    weight: float = Field(gt=0)
    """As in GroupContext, at the time the step was sent."""

    @property
    def claimant(self) -> Claimant:
        return Claimant(self.tenant, self.task, self.weight)

    @property
    def digest(self) -> str:
        """SHA-256 of the step's inputs: the task's version, the state before it, and its trajectories. Equal when it is resent."""
        before = [ref and ref.sha256 for ref in (self.checkpoint, self.start and self.start.blob)]
        groups = [[one.group, one.version, [[each.member, each.sequence, each.reward] for each in one.members]] for one in self.groups]
        return hashlib.sha256(json.dumps([self.task, self.version, before, groups]).encode()).hexdigest()


class WeightUpdated(Message, kind="weight-updated.1"):
    """A completed step; its adapter and checkpoint are in the blob store."""

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
    """Number of trained tokens, without padding."""
    started_s: float
    finished_s: float
    """Unix times of the step's start and end."""
