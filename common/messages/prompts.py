"""Prompts: scheduler → environment service → sampler."""

from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from common.messages.artifacts import AdapterRef, TokenRecord
from common.messages.base import Message, Sentence, Value
from common.spec import EnvironmentSection, Limits, Sampling


class ChatMessage(Value):
    """One message of a conversation, as chat templates take it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


class GroupContext(Value):
    """What every message about one group carries. Set by the scheduler at admission; nobody changes it."""

    tenant: str
    task: str
    pool: str
    group: int = Field(ge=0)
    """Counts the task's groups from 0, void ones included; those of evaluations from 10⁹."""
    size: int = Field(ge=1)
    """Members (G)."""
    version: int = Field(ge=0)
    """Of the policy that samples the whole group."""
    adapter: AdapterRef | None
    """None at version 0 of a task that starts afresh: the base model itself."""
    family: str
    """Of the environment: the queue that its turns go through."""
    environment: EnvironmentSection
    sampling: Sampling
    greedy: bool = False
    """Take the likeliest token each time, whatever `sampling.temperature` says; for evaluations."""
    limits: Limits
    row: int = Field(ge=0)
    """Which prompt; the environment turns it into one."""
    seed: int = Field(ge=0)
    """The group's own: its members are sampled with seeds derived from it."""
    deadline_s: float
    """Unix time on NATS's clock (`Clock.now_s`) at which the group is given up."""
    task_seed: int | None = Field(default=None, ge=0)
    """The same for all groups of the task: prompts are made of it and the row. None from a scheduler that did not say: `seed`."""

    def trajectory(self, member: int) -> str:
        """The id of one attempt, unique within its task."""
        return f"{self.group}-{member}"


class CheckEnvironment(Message):
    """Can this environment be built with these options? Asked once, before a task is accepted."""

    kind: ClassVar[str] = "check-environment.1"
    tenant: str
    task: str
    family: str
    environment: EnvironmentSection
    seed: int
    evaluation: EnvironmentSection | None = None
    """As held-out prompts have it, where the task gives it other options for those."""


class EnvironmentChecked(Message):
    """The answer to CheckEnvironment: accepted, or why not."""

    kind: ClassVar[str] = "environment-checked.1"
    tenant: str
    task: str
    objection: Sentence | None
    """None when the environment opened its first prompt, and the one with the evaluation's options opened its own."""


class OpenGroup(Message):
    """Open this prompt and ask for every member's first turn."""

    kind: ClassVar[str] = "open-group.1"
    group: GroupContext


class TurnRequest(Value):
    """One member's wish for a turn: append `messages` to the transcript and sample."""

    member: int = Field(ge=0)
    turn: int = Field(ge=0)
    transcript: TokenRecord
    """Empty at turn 0."""
    messages: list[ChatMessage]
    """New since the transcript."""
    tools: list[dict[str, JsonValue]] = []
    """JSON schemas for the chat template; used at turn 0 only."""
    state: bytes
    """The environment's own, opaque to all others, MessagePack."""


class SampleTurns(Message):
    kind: ClassVar[str] = "sample-turns.1"
    group: GroupContext
    members: list[TurnRequest] = Field(min_length=1)
