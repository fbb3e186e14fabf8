"""Tasksets of the package `verifiers`, played in one turn: the door to it.

    [sums]                                                # a name for tasks, in the file of MARLAAS_ENV_HOSTS_FILE
    python = "/opt/verifiers/bin/python"                  # `pip install 'marlaas[verifiers]'` and the taskset's package
    environment = "env_svc.adapters.verifiers:Taskset"
    options = { taskset = "sums", config = { split = "train" }, adjustable = ["digits"] }

A taskset gives prompts and grades replies; whatever else verifiers' own rollouts bring (harnesses, tool servers, runtimes,
environments of several agents) has no place in a turn that is sampled elsewhere, and a taskset that needs it is refused.
"""

import asyncio
import inspect
import itertools
from typing import Any

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]  # the extra `marlaas[verifiers]`
from pydantic import JsonValue, ValidationError
from verifiers.v1.state import state_cls  # pyright: ignore[reportMissingImports]

from env_svc.contract import ChatMessage, Environment, EnvironmentUnavailable, Finish, Opening, Reply, Turn, WrongOptions
from env_svc.options import near
from env_svc.rows import order

ROWS_OF_ENDLESS = 10_000
"""Read of a taskset without end, unless the task says how many."""

State = dict[str, JsonValue]
"""`row`: a position in the taskset; `task`: the hash of what was there."""


class Taskset(Environment[State]):
    """One prompt, one reply; the reward is the sum of the taskset's weighted rewards, its components are they and the metrics."""

    operator_options = ("taskset", "config", "adjustable")

    def __init__(
        self,
        taskset: str,
        *,
        config: dict[str, JsonValue] | None = None,
        adjustable: list[str] | None = None,
        settings: dict[str, JsonValue] | None = None,
        rows: int | None = None,
        system: str = "",
        instruction: str = "",
    ) -> None:
        """`settings`: fields of the taskset's configuration that a task may set, of those in `adjustable`."""
        for name in settings or {}:
            if name not in (adjustable or []):
                raise WrongOptions(f"taskset '{taskset}' lets tasks set no '{name}'{near(name, adjustable or [])}")
        if rows is not None and rows < 1:
            raise WrongOptions(f"rows is {rows}, expected 1 or more")
        self._taskset = _loaded(taskset, {**(config or {}), **(settings or {})})
        self._rows, self._system, self._instruction = rows, system, instruction
        self._reading: asyncio.Future[list[Any]] | None = None

    async def open(self, index: int, seed: int) -> Opening[State]:
        tasks = await self._tasks()
        epoch, position = divmod(index, len(tasks))
        row = order(len(tasks), seed, epoch)[position]
        messages = _prompt(tasks[row].data, self._system, self._instruction)
        return Opening(messages, {"row": row, "task": tasks[row].hash})

    async def step(self, state: State, reply: Reply) -> Turn[State]:
        tasks, row = await self._tasks(), state["row"]
        assert isinstance(row, int)
        if row >= len(tasks) or tasks[row].hash != state["task"]:
            raise RuntimeError(f"row {row} of the taskset is another task here than where it was opened: `load` must not vary")
        trace = _trace(tasks[row], _prompt(tasks[row].data, self._system, self._instruction), reply)
        try:
            await tasks[row].score(trace)
        except vf.TaskError:
            raise
        except vf.RolloutError as error:  # a judge's model or a sandbox, not the taskset's own code
            raise EnvironmentUnavailable(f"{type(error).__name__}: {error}") from error
        components = {name: float(reward.score) for name, reward in trace.rewards.items()}
        return Finish(float(trace.reward), components | {name: float(value) for name, value in trace.metrics.items()})

    async def _tasks(self) -> list[Any]:
        """`Any`: tasks of verifiers. Read in a thread and once: a taskset may download what it reads, or wait for a disk."""
        if self._reading is None or (self._reading.done() and self._reading.exception() is not None):
            self._reading = asyncio.ensure_future(asyncio.to_thread(self._read))
        return await asyncio.shield(self._reading)

    def _read(self) -> list[Any]:
        limit = self._rows or (None if self._taskset.bounded else ROWS_OF_ENDLESS)
        try:
            tasks = list(itertools.islice(self._taskset, limit))
        except OSError as error:
            raise EnvironmentUnavailable(f"the taskset cannot be read: {type(error).__name__}: {error}") from error
        if not tasks:
            raise WrongOptions("the taskset has no tasks")
        _check_rewards(tasks[0])
        return tasks


def _loaded(name: str, config: dict[str, JsonValue]) -> Any:
    """A taskset of verifiers. Raises: WrongOptions when there is none, or none that one turn can play."""
    try:
        if vf.environment_class(name) is not vf.SingleAgentEnv:
            raise WrongOptions(f"taskset '{name}' brings its own way to play (an Env): only its own rollouts can")
        loaded = vf.load_taskset(vf.taskset_config_type(name).model_validate({**config, "id": name}))
    except ValidationError as error:
        first = error.errors()[0]
        raise WrongOptions(f"taskset '{name}': {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (ImportError, AttributeError, TypeError) as error:
        raise WrongOptions(f"taskset '{name}' cannot be loaded: {error}") from error
    kind = loaded.task_type()
    needed = [stage for stage in ("setup", "finalize", "stage_verifier") if getattr(kind, stage) is not getattr(vf.Task, stage)]
    if kind.NEEDS_CONTAINER or needed:
        raise WrongOptions(f"taskset '{name}' needs a runtime of verifiers{' for its ' + needed[0] if needed else ''}: it has none here")
    if type(loaded).toolsets(loaded.config) or kind.toolsets(loaded.config.task):
        raise WrongOptions(f"taskset '{name}' brings tool servers, which are not started here")
    return loaded


def _check_rewards(task: Any) -> None:
    """Raises: WrongOptions. Without a runtime `score` leaves out, silently, what needs one."""
    rewards, judges = task.hooks("reward"), [judge.score for judge in task.plugged_judges()]
    if not rewards and not judges:
        raise WrongOptions(f"{type(task).__name__} has no reward")
    for signal in (*rewards, *judges, *task.hooks("metric")):
        if _needs_runtime(signal):
            raise WrongOptions(f"{type(task).__name__}.{signal.__name__} needs a runtime of verifiers: it has none here")


def _needs_runtime(signal: Any) -> bool:
    wanted = inspect.signature(signal).parameters.get("runtime")
    return wanted is not None and wanted.default is inspect.Parameter.empty


def _prompt(data: Any, system: str, instruction: str) -> list[ChatMessage]:
    """Raises: ValueError where a prompt is not text that asks for a reply."""
    given = [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt or [])
    if not given or not all(message.role != "tool" and isinstance(message.content, str) for message in given):
        raise ValueError(f"task {data.idx} has no prompt of text alone")
    first = system or data.system_prompt
    messages = [ChatMessage(role="system", content=first)] if first else []
    messages += [ChatMessage(role=message.role, content=message.content) for message in given]
    if instruction:
        messages[-1] = ChatMessage(role=messages[-1].role, content=f"{messages[-1].content}\n\n{instruction}")
    return messages


def _trace(task: Any, prompt: list[ChatMessage], reply: Reply) -> Any:
    """What verifiers itself would have recorded of this turn, as far as a grader looks at it."""
    kinds = {"system": vf.SystemMessage, "user": vf.UserMessage, "assistant": vf.AssistantMessage}
    said = [kinds[message.role](content=message.content) for message in prompt]
    nodes = [vf.MessageNode(parent=number - 1 if number else None, message=message) for number, message in enumerate(said)]
    nodes.append(vf.MessageNode(parent=len(said) - 1, message=vf.AssistantMessage(content=reply.text), sampled=True))
    call = vf.ModelCall(node=len(said), finish_reason="length" if reply.truncated else "stop")
    about = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    state = state_cls(type(task))()
    agent = vf.AgentInfo(config=vf.AgentConfig())
    return vf.Trace(task=about, agent=agent, nodes=nodes, calls=[call], state=state, is_completed=True, ok=True)
