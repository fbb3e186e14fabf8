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
    """One message of a conversation, as chat templates take it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    name: str | None = None
    """Of an answer of a tool: the tool, which some chat templates demand."""


class GroupContext(Value):
    """Context in every message about one group. Set by the scheduler at admission, constant from then on."""

    tenant: str
    task: str
    pool: str
    group: int = Field(ge=0)
    """Number among the task's groups from 0, void ones included; in evaluations from FIRST_EVALUATION_GROUP."""
    size: int = Field(ge=1)
    """Members (G)."""
    version: int = Field(ge=0)
    """Version of the policy that samples the whole group."""
    adapter: AdapterRef | None
    """None at version 0 without a `start`: the base model itself."""
    family: str
    """Environment family, and so the queue of its turns."""
    environment: EnvironmentSection
    sampling: Sampling
    greedy: bool = False
    """Take the likeliest token each time, whatever `sampling.temperature` says; for evaluations."""
    limits: Limits
    row: int = Field(ge=0)
    """Number of the prompt, which the environment makes from it."""
    seed: int = Field(ge=0)
    """Seed of the group, from which its members' are derived."""
    deadline_s: float
    """Unix time on NATS's clock (`Clock.now_s`) at which the group times out."""
    task_seed: int | None = Field(default=None, ge=0)
    """Seed of the task: prompts are made of it and the row. None in evaluations: `seed` serves."""
    weight: float = Field(gt=0)
    """The tenant's weight at admission, by which queues are shared."""
    by_operator: bool
    """Whether the operator has submitted the task, and no tenant's key."""
    package: BlobRef | None = None
    """Wheel of the tenant's own environment; None for the operator's environments."""
    home: Name | None = Field(default=None, exclude_if=lambda home: home is None)
    """Accelerator whose sampler gets the group's turns, of a pool that is on several; None: any of the pool's samplers."""

    @property
    def claimant(self) -> Claimant:
        return Claimant(self.tenant, self.task, self.weight)

    def trajectory(self, member: int) -> str:
        """The id of one attempt, unique within its task."""
        return f"{self.group}-{member}"


class CheckEnvironment(Message, kind="check-environment.1"):
    """Check that the environment can be built with these options; sent once, before a task is accepted."""

    tenant: str
    task: str
    family: str
    environment: EnvironmentSection
    seed: int
    evaluation: EnvironmentSection | None = None
    """Environment of held-out prompts, where the task gives it other options for those."""
    protocols: dict[str, dict[str, JsonValue]] = {}
    """Options of a task's protocols, by the protocol's name; each is checked in place of the environment's own of the same names."""
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
    """The answer to CheckEnvironment: accepted, or why not."""

    tenant: str
    task: str
    objection: Sentence | None
    """None when the environment opened its first prompt, with the task's options and with those of evaluations."""
    has_tools: bool = False
    """Whether one of them gave tools to the policy."""


class OpenGroup(Message, kind="open-group.1"):
    """Open this prompt and request every member's first turn."""

    group: GroupContext


class TurnRequest(Value):
    """Request of one member's turn: append `messages` to the transcript and sample."""

    member: int = Field(ge=0)
    turn: int = Field(ge=0)
    transcript: TokenRecord
    """Empty at turn 0."""
    messages: list[ChatMessage]
    """Messages since the transcript."""
    tools: list[dict[str, JsonValue]] = []
    """JSON schemas for the chat template; used at turn 0 only."""
    state: bytes
    """State of the environment, opaque to all others, MessagePack."""
    env_ms: float = Field(default=0.0, ge=0)
    """Milliseconds that worker and hosted processes worked for the member's turns so far; the first has that of the opening."""
    away_ms: float = Field(default=0.0, ge=0)
    """Milliseconds for which the member's turns so far were with their environment: tools, waits and rewards included."""


class SampleTurns(Message, kind="sample-turns.1"):
    group: GroupContext
    members: list[TurnRequest] = Field(min_length=1)
