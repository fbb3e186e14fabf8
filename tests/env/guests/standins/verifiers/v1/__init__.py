"""See `verifiers`."""

import asyncio
import hashlib
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Generic, TypeVar, get_args

from pydantic import BaseModel, ConfigDict

from verifiers.v1.state import State


class RolloutError(Exception):
    pass


class ProviderError(RolloutError):
    def __init__(self, message: str = "", *, status_code: int = 502) -> None:
        super().__init__(message)
        self.status_code = status_code


class TaskError(RolloutError):
    pass


class SystemMessage(BaseModel):
    role: str = "system"
    content: str | list[dict[str, Any]]


class UserMessage(BaseModel):
    role: str = "user"
    content: str | list[dict[str, Any]]


class AssistantMessage(BaseModel):
    role: str = "assistant"
    content: str | None = None


Message = SystemMessage | UserMessage | AssistantMessage


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
    pass


class AgentInfo(BaseModel):
    config: AgentConfig


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


class Trace(BaseModel):
    task: TraceTask
    agent: AgentInfo
    nodes: list[MessageNode]
    calls: list[ModelCall]
    state: State
    is_completed: bool = False
    ok: bool = False
    rewards: dict[str, Reward] = {}
    metrics: dict[str, float] = {}

    @property
    def reward(self) -> float:
        return sum(reward.score * reward.weight for reward in self.rewards.values())

    @property
    def messages(self) -> list[Message]:
        return [node.message for node in self.nodes]

    @property
    def last_reply(self) -> str:
        return [str(node.message.content) for node in self.nodes if node.sampled][-1].strip()

    @property
    def is_truncated(self) -> bool:
        return self.calls[-1].finish_reason == "length"


DataT = TypeVar("DataT", bound=TaskData)


class Task(Generic[DataT]):
    NEEDS_CONTAINER: ClassVar[bool] = False

    def __init__(self, data: DataT, config: TaskConfig | None = None) -> None:
        self.data, self.config = data, config or TaskConfig()

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.data.model_dump_json().encode()).hexdigest()

    key = hash

    async def setup(self, trace: Trace, runtime: Any) -> None: ...

    async def finalize(self, trace: Trace, runtime: Any) -> None: ...

    async def stage_verifier(self, trace: Trace, runtime: Any) -> None: ...

    def plugged_judges(self) -> list[Any]:
        return []

    def hooks(self, attr: str) -> list[Callable[..., Any]]:
        return [getattr(self, name) for name, value in vars(type(self)).items() if hasattr(value, attr)]

    async def score(self, trace: Trace) -> None:
        try:
            for metric in self.hooks("metric"):
                trace.metrics[metric.__name__] = await self._called(metric, trace)
            rewards = self.hooks("reward")
            results = await asyncio.gather(*(self._called(reward, trace) for reward in rewards))
        except RolloutError:
            raise
        except Exception as error:
            raise TaskError(f"task {type(self).__name__} scoring: {type(error).__name__}: {error}") from error
        for reward, result in zip(rewards, results, strict=True):
            named = result if isinstance(result, dict) else {reward.__name__: result}
            for name, score in named.items():
                trace.rewards[name] = Reward(score=score, weight=getattr(reward, "_vf_weight", 1.0))

    async def _called(self, signal: Callable[..., Any], trace: Trace) -> Any:
        known = {"task": self.data, "trace": trace}
        return await signal(**{name: known[name] for name in inspect.signature(signal).parameters})

    @classmethod
    def toolsets(cls, config: TaskConfig) -> list[Any]:
        return []


TaskT = TypeVar("TaskT")
ConfigT = TypeVar("ConfigT")


class Taskset(Generic[TaskT, ConfigT]):
    bounded = True

    def __init__(self, config: Any) -> None:
        self.config = config

    def load(self) -> Iterable[Any]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        for number, task in enumerate(self.load()):
            yield type(task)(task.data.model_copy(update={"idx": number}), task.config)

    @classmethod
    def task_type(cls) -> Any:
        return get_args(cls.__orig_bases__[0])[0]  # type: ignore[attr-defined]

    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        return []


class Env:
    pass


class SingleAgentEnv(Env):
    pass


def reward(function: Any = None, *, weight: float = 1.0) -> Any:
    def mark(marked: Any) -> Any:
        marked.reward, marked._vf_weight = True, weight
        return marked

    return mark if function is None else mark(function)


def metric(function: Any) -> Any:
    function.metric = True
    return function


def environment_class(name: str) -> type[Env]:
    try:
        return _exported(name, Env)
    except (ImportError, TypeError):
        return SingleAgentEnv


def taskset_config_type(name: str) -> Any:
    return get_args(_exported(name, Taskset).__orig_bases__[0])[1]


def load_taskset(config: TasksetConfig) -> Any:
    return _exported(config.id, Taskset)(config)


def _exported(name: str, base: type) -> Any:
    module = importlib.import_module(name)
    for exported in module.__all__:
        found = getattr(module, exported)
        if issubclass(found, base):
            return found
    raise TypeError(f"taskset module '{name}' exports no {base.__name__} subclass via `__all__`")
