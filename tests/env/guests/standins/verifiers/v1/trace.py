"""Messages, configurations and the trace of an episode: see `verifiers`."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class SystemMessage(BaseModel):
    role: str = "system"
    content: str | list[dict[str, Any]]


class UserMessage(BaseModel):
    role: str = "user"
    content: str | list[dict[str, Any]]


class ToolCall(BaseModel):
    id: str
    name: str
    arguments: str


class AssistantMessage(BaseModel):
    role: str = "assistant"
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ToolMessage(BaseModel):
    role: str = "tool"
    tool_call_id: str
    content: str
    name: str | None = None


class Tool(BaseModel):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class Request(BaseModel):
    messages: list[Any]


Message = Any


class TaskConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TasksetConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str = ""
    task: TaskConfig = TaskConfig()


class TaskData(BaseModel):
    model_config = ConfigDict(frozen=True)

    idx: int | None = None
    prompt: str | list[Message] | None = None
    system_prompt: str | None = None


class AgentConfig(BaseModel):
    max_turns: int | None = None


class AgentInfo(BaseModel):
    config: AgentConfig
    name: str = "agent"
    trainable: bool = True


class TraceTask(BaseModel):
    type: str
    data: Any
    key: str
    hash: str


class Reward(BaseModel):
    score: float
    weight: float = 1.0


class ModelCall(BaseModel):
    node: int
    finish_reason: str


class MessageNode(BaseModel):
    parent: int | None = None
    message: Message
    sampled: bool = False
    tools: list[Tool] = []


class Trace(BaseModel):
    task: TraceTask
    agent: AgentInfo
    nodes: list[MessageNode] = []
    calls: list[ModelCall] = []
    state: Any
    tools: list[Tool] = []
    info: dict[str, Any] = {}
    is_completed: bool = False
    ok: bool = False
    stop_condition: str | None = None
    rewards: dict[str, Reward] = {}
    metrics: dict[str, float] = {}

    def stop(self, condition: str) -> None:
        self.is_completed = True
        self.stop_condition = self.stop_condition or condition

    def record_reward(self, name: str, value: float, weight: float = 1.0) -> None:
        self.rewards[name] = Reward(score=value, weight=weight)

    def record_metric(self, name: str, value: float) -> None:
        self.metrics[name] = value

    @property
    def num_turns(self) -> int:
        return sum(node.sampled for node in self.nodes)

    @property
    def assistant_messages(self) -> list[AssistantMessage]:
        return [node.message for node in self.nodes if node.sampled]

    @property
    def tool_messages(self) -> list[ToolMessage]:
        return [node.message for node in self.nodes if node.message.role == "tool"]

    @property
    def reward(self) -> float:
        return sum(reward.score * reward.weight for reward in self.rewards.values())

    @property
    def messages(self) -> list[Message]:
        return [node.message for node in self.nodes]

    @property
    def last_reply(self) -> str:
        return ([""] + [str(node.message.content) for node in self.nodes if node.sampled])[-1].strip()

    @property
    def is_truncated(self) -> bool:
        return self.stop_condition == "max_turns" or self.calls[-1].finish_reason == "length"


class Segment(BaseModel):
    messages: list[Any]
    terminated: bool = False

    @property
    def last_reply(self) -> str:
        return ([""] + [str(one.content) for one in self.messages if one.role == "assistant"])[-1].strip()


class Episode(BaseModel):
    task: TraceTask
    traces: list[Trace]
