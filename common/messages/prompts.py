"""Prompts: scheduler → environment service → sampler."""

from typing import Literal

from pydantic import Field, JsonValue

from common.fairness.fair_queue import Claimant
from common.messages.artifacts import AdapterRef, BlobRef, TokenRecord
from common.messages.base import Message, Sentence, Value
from common.spec import EnvironmentSection, Limits, Name, Sampling

FIRST_EVALUATION_GROUP = 1_000_000_000
"""Number of the first group of evaluations; training groups count from 0."""


class ChatMessage(Value):
    """One message of a conversation, in the format of chat templates."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    name: str | None = None
    """For a tool's answer: name of the tool, which some chat templates require."""


class GroupContext(Value):
    """Context of one group, part of every message about it. Set by the scheduler at admission, constant from then on."""

    tenant: str
    task: str
    pool: str
    group: int = Field(ge=0)
    """Number among the task's groups from 0, void ones included; for evaluations from FIRST_EVALUATION_GROUP."""
    size: int = Field(ge=1)
    """Number of members (G)."""
    version: int = Field(ge=0)
    """Version of the policy that samples the whole group."""
    adapter: AdapterRef | None
    """None at version 0 without a `start`: the base model."""
    family: str
    """Environment family, which determines the queue of its turns."""
    environment: EnvironmentSection
    sampling: Sampling
    greedy: bool = False
    """Greedy decoding, regardless of `sampling.temperature`; for evaluations."""
    limits: Limits
    row: int = Field(ge=0)
    """Number of the prompt, from which the environment builds it."""
    seed: int = Field(ge=0)
    """Seed of the group, from which its members' seeds are derived."""
    deadline_s: float
    """Unix time on NATS's clock (`Clock.now_s`) at which the group times out."""
    task_seed: int | None = Field(default=None, ge=0)
    """Seed of the task: prompts are derived from it and the row. None in evaluations, which use `seed`."""
    weight: float = Field(gt=0)
    """The tenant's weight at admission, for weighted fair queues."""
    by_operator: bool
    """Whether the operator submitted the task, instead of a tenant's key."""
    package: BlobRef | None = None
    """Wheel of the tenant's own environment; None for the operator's environments."""
    home: Name | None = Field(default=None, exclude_if=lambda home: home is None)
    """Accelerator whose sampler gets the group's turns, in a pool that is on several; None: any of the pool's samplers."""

    @property
    def claimant(self) -> Claimant:
        return Claimant(self.tenant, self.task, self.weight)

    def trajectory(self, member: int) -> str:
        """Id of one attempt, unique within its task."""
        return f"{self.group}-{member}"


class CheckEnvironment(Message, kind="check-environment.1"):
    """Check that the environment can be built with these options; sent once, before a task is accepted."""

    tenant: str
    task: str
    family: str
    environment: EnvironmentSection
    seed: int
    evaluation: EnvironmentSection | None = None
    """Environment of held-out prompts, if the task gives it other options."""
    protocols: dict[str, dict[str, JsonValue]] = {}
    """Options of a task's protocols, by the protocol's name; each is checked with these overriding the environment's own."""
    weight: float = Field(gt=0)
    """As in GroupContext."""
    by_operator: bool
    """As in GroupContext."""
    package: BlobRef | None = None
    """As in GroupContext."""

    @property
    def claimant(self) -> Claimant:
        return Claimant(self.tenant, self.task, self.weight)


class EnvironmentChecked(Message, kind="environment-checked.1"):
    """Answer to CheckEnvironment: accepted, or the objection."""

    tenant: str
    task: str
    objection: Sentence | None
    """None if the environment opened its first prompt, both with the task's options and with those of evaluations."""
    has_tools: bool = False
    """Whether any of them offers tools to the policy."""


class OpenGroup(Message, kind="open-group.1"):
    """Open this prompt and request the first turn of every member."""

    group: GroupContext


class TurnRequest(Value):
    """Request of one member's turn: append `messages` to the transcript and sample."""

    member: int = Field(ge=0)
    turn: int = Field(ge=0)
    transcript: TokenRecord
    """Empty at turn 0."""
    messages: list[ChatMessage]
    """Messages after the transcript."""
    tools: list[dict[str, JsonValue]] = []
    """JSON schemas for the chat template; used at turn 0 only."""
    state: bytes
    """State of the environment as MessagePack, opaque to all other services."""
    env_ms: float = Field(default=0.0, ge=0)
    """Milliseconds that worker and hosted processes worked for the member's turns so far; the first turn includes the opening."""
    away_ms: float = Field(default=0.0, ge=0)
    """Milliseconds that the member's turns so far spent in their environment: tools, waits and rewards included."""


class SampleTurns(Message, kind="sample-turns.1"):
    group: GroupContext
    members: list[TurnRequest] = Field(min_length=1)
