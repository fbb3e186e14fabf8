"""Tasks, tasksets, environments and tool servers: see `verifiers`."""

import asyncio
import contextlib
import hashlib
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Generic, TypeVar, TypeVarTuple, get_args

from pydantic import BaseModel, ConfigDict, create_model

from verifiers.v1.mcp.server import _call_state
from verifiers.v1.trace import AgentConfig, Episode, Reward, TaskConfig, TaskData, Trace
from verifiers.v1.utils.decorators import discover_decorated


class RolloutError(Exception):
    pass


class ProviderError(RolloutError):
    def __init__(self, message: str = "", *, status_code: int = 502) -> None:
        super().__init__(message)
        self.status_code = status_code


class TaskError(RolloutError):
    pass


DataT = TypeVar("DataT", bound=TaskData)


Arguments = TypeVarTuple("Arguments")


class Task(Generic[DataT, *Arguments]):
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
        return discover_decorated(self, attr)

    async def score(self, trace: Trace) -> None:
        try:
            for metric in self.hooks("metric"):
                result = await self._called(metric, trace)
                trace.metrics.update(result if isinstance(result, dict) else {metric.__name__: result})
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


class EnvConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")

    taskset: Any


class SingleAgentEnvConfig(EnvConfig):
    agent: AgentConfig = AgentConfig()


class Env(Generic[ConfigT]):
    def __init__(self, config: Any) -> None:
        self.config = config
        self.taskset = _exported(config.taskset.id, Taskset)(config.taskset)

    async def setup(self, agents: Any) -> None: ...

    async def run(self, task: Any, agents: Any) -> None: ...

    async def finalize(self, task: Any, episode: Episode) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class SingleAgentEnv(Env[SingleAgentEnvConfig]):
    async def run(self, task: Any, agents: Any) -> None:
        await agents.agent.run(task)


class Agents:
    def __init__(self, config: Any, make: Callable[[str, Any], Any]) -> None:
        for name, value in config:
            if isinstance(value, AgentConfig):
                setattr(self, name, make(name, value))


class Harness:
    pass


class SubprocessConfig(BaseModel):
    pass


class DockerConfig(BaseModel):
    pass


class SharedToolsetConfig(BaseModel):
    runtime: SubprocessConfig | DockerConfig = SubprocessConfig()
    url: str | None = None


class ToolsetConfig(SharedToolsetConfig):
    colocated: bool = False


class Toolset(Generic[ConfigT, *Arguments]):
    TOOL_PREFIX: ClassVar[str | None] = ""

    def __init__(self, config: Any) -> None:
        self.config = config
        self._exit_stack = contextlib.AsyncExitStack()

    @property
    def state(self) -> Any:
        return _call_state.get()

    @property
    def server_name(self) -> str:
        return "" if self.TOOL_PREFIX is None else self.TOOL_PREFIX or type(self).__name__.lower()

    async def setup(self) -> None: ...

    async def setup_task(self, task: Any) -> None: ...

    def register(self, mcp: Any) -> None: ...


def _marked(attr: str, function: Any, **extra: Any) -> Any:
    def mark(marked: Any) -> Any:
        for name, value in {attr: True, **extra}.items():
            setattr(marked, name, value)
        return marked

    return mark if function is None else mark(function)


def reward(function: Any = None, *, weight: float = 1.0) -> Any:
    return _marked("reward", function, _vf_weight=weight)


def metric(function: Any) -> Any:
    return _marked("metric", function)


def stop(function: Any) -> Any:
    return _marked("stop", function)


def intercept(function: Any) -> Any:
    return _marked("intercept", function)


def tool(function: Any = None, name: str | None = None) -> Any:
    return _marked("tool", function, tool_name=name)


def environment_class(name: str) -> type[Env]:
    try:
        return _exported(name, Env)
    except (ImportError, TypeError):
        return SingleAgentEnv


def default_harness_id(name: str) -> str:
    try:
        _exported(name, Harness)
    except (ImportError, TypeError):
        return "bash"
    return name


def env_config_type(name: str) -> Any:
    wanted = get_args(environment_class(name).__orig_bases__[0])[0]
    config = get_args(_exported(name, Taskset).__orig_bases__[0])[1]
    return create_model(wanted.__name__, __base__=wanted, taskset=(config, ...))


def load_environment(config: Any) -> Any:
    return environment_class(config.taskset.id)(config)


def _exported(name: str, base: type) -> Any:
    module = importlib.import_module(name)
    for exported in module.__all__:
        found = getattr(module, exported)
        if issubclass(found, base):
            return found
    raise TypeError(f"taskset module '{name}' exports no {base.__name__} subclass via `__all__`")
