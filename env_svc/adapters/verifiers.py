"""Adapter for tasksets of the package `verifiers`: the door to it, with `verifiers_episode.py` and `verifiers_tools.py`.

    [sums]                                                # a name for tasks, in the file of MARLAAS_ENV_HOSTS_FILE
    python = "/opt/verifiers/bin/python"                  # `pip install 'marlaas[verifiers]'` and the taskset's package
    environment = "env_svc.adapters.verifiers:Taskset"
    options = { taskset = "sums", config = { split = "train" }, adjustable = ["digits"] }

A taskset gives prompts, tools and grades, and an environment of verifiers may play the user. Both run here, in the host
process; the policy is sampled elsewhere. A taskset that needs a container, a harness or a second model is refused.

An episode's state is its history: the replies so far, and digests of the messages around them. A process that gets this
state resumes the episode if it still holds it. Otherwise it replays the replies in a new episode, which must send the same messages.
"""

import asyncio
import hashlib
import inspect
import itertools
import json
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, ClassVar, TypedDict

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]  # the extra `marlaas[verifiers]`
from pydantic import JsonValue, ValidationError
from verifiers.v1.session import hook_boundary  # pyright: ignore[reportMissingImports]
from verifiers.v1.utils.decorators import discover_decorated  # pyright: ignore[reportMissingImports]

from common.caches import LRUCache
from common.formats.wrong_values import field_of, reason_of
from env_svc.adapters.verifiers_episode import HeldEpisode, PolicyAgent, PromptStyle
from env_svc.adapters.verifiers_tools import ServedToolset, check_toolset
from env_svc.contract import (
    ChatMessage,
    Continue,
    Environment,
    EnvironmentUnavailable,
    Finish,
    Opening,
    Reply,
    ToolCall,
    Turn,
    WrongOptions,
)
from env_svc.datasets import order
from env_svc.options import suggestion

MAX_ROWS_OF_ENDLESS = 10_000
"""Maximum rows read of an endless taskset, unless the task says how many."""


class VerifiersState(TypedDict):
    """State of an episode, as messages carry it."""

    row: int
    """Position in the taskset."""
    task: str
    """Hash of the task at that row."""
    said: bytes
    """Replies so far, compressed."""
    told: list[str]
    """Digests of the messages to the policy: at the opening, then after each reply."""


class Taskset(Environment[VerifiersState]):
    """A taskset. Reward: the sum of its weighted rewards; components: its rewards and metrics."""

    max_held: ClassVar[int] = 1024
    """Maximum episodes that wait here for a reply; an evicted one is replayed when its reply comes."""

    operator_options = ("taskset", "config", "environment", "adjustable")

    def __init__(  # noqa: PLR0913 - each is an option with a name of its own
        self,
        taskset: str,
        *,
        config: dict[str, JsonValue] | None = None,
        environment: dict[str, JsonValue] | None = None,
        adjustable: list[str] | None = None,
        settings: dict[str, JsonValue] | None = None,
        rows: int | None = None,
        system: str = "",
        instruction: str = "",
        reasoning: bool = False,
    ) -> None:
        """`config`: configuration of the taskset. `environment`: configuration of its `Env`. `adjustable`: fields of `config` that tasks
        may set. `settings`: the task's values for these."""
        for name in settings or {}:
            if name not in (adjustable or []):
                raise WrongOptions(f"taskset '{taskset}' lets tasks set no '{name}'{suggestion(name, adjustable or [])}")
        if rows is not None and rows < 1:
            raise WrongOptions(f"rows is {rows}, expected 1 or more")
        self._env = _loaded(taskset, {**(config or {}), **(settings or {})}, environment or {})
        self._shared = [ServedToolset(toolset) for toolset in self._env.taskset.toolsets(self._env.taskset.config)]
        self._rows, self._manner = rows, PromptStyle(system, instruction, reasoning)
        self._starting: asyncio.Future[list[Any]] | None = None
        self._held: LRUCache[str, HeldEpisode] = LRUCache(self.max_held)

    async def open(self, index: int, seed: int) -> Opening[VerifiersState]:
        tasks = await self._started()
        epoch, position = divmod(index, len(tasks))
        row = order(len(tasks), seed, epoch)[position]
        episode, messages = await self._begin(tasks[row])
        state = VerifiersState(row=row, task=tasks[row].hash, said=_packed([]), told=[_digest(messages)])
        await self._hold(state, episode)
        return Opening(messages, state, episode.tools)

    async def step(self, state: VerifiersState, reply: Reply) -> Turn[VerifiersState]:
        episode = self._held.pop(_history(state)) or await self._replayed(state)
        messages = await _answered(episode, reply)
        if messages is None:
            return _finish(episode.trace)
        said = _packed([*_unpacked(state["said"]), reply])
        state = VerifiersState({**state, "said": said, "told": [*state["told"], _digest(messages)]})
        await self._hold(state, episode)
        return Continue(messages, state)

    async def conclude(self, state: VerifiersState) -> Finish:
        """Grade the episode so far, as when verifiers' own limits end a rollout."""
        episode = self._held.pop(_history(state)) or await self._replayed(state)
        if await _answered(episode, None) is not None:
            await episode.end()
            raise RuntimeError("the environment continues to ask an agent that has used up its turns")
        return _finish(episode.trace)

    async def close(self) -> None:
        for episode in self._held.clear():
            await episode.end()
        starting, self._starting = self._starting, None
        if starting is not None:
            await asyncio.gather(starting, return_exceptions=True)
            await self._env.stop()
            for served in self._shared:
                await served.end()

    async def _hold(self, state: VerifiersState, episode: HeldEpisode) -> None:
        if (replaced := self._held.put(_history(state), episode)) is not None:
            await replaced.end()

    async def _begin(self, task: Any) -> tuple[HeldEpisode, list[ChatMessage]]:
        async def program(episode: HeldEpisode) -> None:
            def seat(name: str, config: Any) -> PolicyAgent:
                return PolicyAgent(episode, name, config, self._shared, self._manner)

            agents = vf.Agents(self._env.config, seat)
            await self._env.setup(agents)
            await self._env.run(task, agents)
            if episode.trace is None:
                raise RuntimeError(f"{type(self._env).__name__}.run() asked its agent nothing")
            about = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
            await self._env.finalize(task, vf.Episode(task=about, traces=[episode.trace]))

        episode = HeldEpisode(program)
        with _unavailability():
            return episode, await episode.begun()

    async def _replayed(self, state: VerifiersState) -> HeldEpisode:
        """A new episode with the replies replayed. Raises: EnvironmentUnavailable when the replay differs."""
        tasks, row = await self._started(), state["row"]
        if row >= len(tasks) or tasks[row].hash != state["task"]:
            raise RuntimeError(f"row {row} of the taskset is another task here than where it was opened: `load` must not vary")
        episode, messages = await self._begin(tasks[row])
        said = _unpacked(state["said"])
        for number, digest in enumerate(state["told"]):
            following = messages if number == 0 else await _answered(episode, said[number - 1])
            if following is None or _digest(following) != digest:
                await episode.end()
                place = f"reply {number}" if number else "the opening"
                raise EnvironmentUnavailable(f"replayed, {place} was followed by other messages than before: it is not deterministic")
        return episode

    async def _started(self) -> list[Any]:
        """The tasks of the taskset, loaded and started once."""
        if self._starting is None or (self._starting.done() and self._starting.exception() is not None):
            self._starting = asyncio.ensure_future(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> list[Any]:
        tasks = await asyncio.to_thread(self._read)  # a taskset may download its rows, or wait for a disk
        with _unavailability():
            await self._env.start()
            for served in self._shared:
                await served.start()
        return tasks

    def _read(self) -> list[Any]:
        taskset = self._env.taskset
        try:
            tasks = list(itertools.islice(taskset, self._rows or (None if taskset.bounded else MAX_ROWS_OF_ENDLESS)))
        except OSError as error:
            raise EnvironmentUnavailable(f"the taskset cannot be read: {type(error).__name__}: {error}") from error
        if not tasks:
            raise WrongOptions("the taskset has no tasks")
        _check_task(tasks[0], grades_itself=type(self._env).run is vf.SingleAgentEnv.run)
        return tasks


# ------------------------------------------------------------------------------------------------------ supported tasksets


def _loaded(name: str, config: dict[str, JsonValue], environment: dict[str, JsonValue]) -> Any:
    """An `Env` of verifiers with its taskset. Raises: WrongOptions when there is none, or an unsupported one."""
    try:
        if vf.default_harness_id(name) == name:
            raise WrongOptions(f"taskset '{name}' brings a harness, a program of its own that drives the policy")
        wanted = vf.env_config_type(name).model_validate({**environment, "taskset": {**config, "id": name}})
        seats = [seat for seat, value in wanted if isinstance(value, vf.AgentConfig)]
        if len(seats) != 1:
            raise WrongOptions(f"taskset '{name}' is played by several agents ({', '.join(seats)}): one policy is sampled here")
        loaded = vf.load_environment(wanted)
        kind = loaded.taskset.task_type()
        toolsets = [*loaded.taskset.toolsets(loaded.taskset.config), *kind.toolsets(loaded.taskset.config.task)]
    except ValidationError as error:
        first = error.errors()[0]
        place = field_of([part for part in first["loc"] if part != "taskset"])
        raise WrongOptions(f"taskset '{name}': {place}: {reason_of(first)}") from None
    except (ImportError, AttributeError, TypeError) as error:
        raise WrongOptions(f"taskset '{name}' cannot be loaded: {error}") from error
    stages = [getattr(kind, stage) for stage in ("setup", "finalize") if getattr(kind, stage) is not getattr(vf.Task, stage)]
    needed = [stage.__name__ for stage in stages if _needs_runtime(stage)]
    needed += ["stage_verifier"] if kind.stage_verifier is not vf.Task.stage_verifier else []
    if kind.NEEDS_CONTAINER or needed:
        raise WrongOptions(f"taskset '{name}' needs a runtime of verifiers{' for its ' + needed[0] if needed else ''}: it has none here")
    for toolset in toolsets:
        problem = check_toolset(toolset, kind)
        if problem is not None:
            raise WrongOptions(f"taskset '{name}': {problem}")
    return loaded


def _check_task(task: Any, *, grades_itself: bool) -> None:
    """Raises: WrongOptions for an unsupported task, such as one whose hooks need a runtime: without one, `score` skips them silently."""
    kind = type(task).__name__
    rewards, judges = task.hooks("reward"), [judge.score for judge in task.plugged_judges()]
    if grades_itself and not rewards and not judges:
        raise WrongOptions(f"{kind} has no reward")
    for signal in (*rewards, *judges, *task.hooks("metric")):
        if _needs_runtime(signal):
            raise WrongOptions(f"{kind}.{signal.__name__} needs a runtime of verifiers: it has none here")
    for hook in discover_decorated(task, "intercept"):
        raise WrongOptions(f"{kind}.{hook.__name__} changes messages on their way to the policy: sampled tokens cannot be changed")
    for stop in task.hooks("stop"):
        if hook_boundary(stop, allow_trace=True) is not vf.Trace:
            raise WrongOptions(f"{kind}.{stop.__name__} looks at a request or response: write it for the trace")


def _needs_runtime(hook: Any) -> bool:
    wanted = inspect.signature(hook).parameters.get("runtime")
    return wanted is not None and wanted.default is inspect.Parameter.empty


# ---------------------------------------------------------------------------------------------------------------- turns


async def _answered(episode: HeldEpisode, reply: Reply | None) -> list[ChatMessage] | None:
    with _unavailability():
        return await episode.answered(reply)


@contextmanager
def _unavailability() -> Generator[None, None, None]:
    """Context. Raises: EnvironmentUnavailable if a judge's model or a game's server fails in it; bugs of the taskset stay as they are."""
    try:
        yield
    except (vf.RolloutError, ConnectionError) as error:
        if isinstance(error, vf.TaskError) and not isinstance(error.__cause__, ConnectionError):
            raise
        raise EnvironmentUnavailable(f"{type(error).__name__}: {error}") from error


def _finish(trace: Any) -> Finish:
    rewards = {name: float(reward.score) for name, reward in trace.rewards.items() if reward is not None}
    metrics = {name: float(value) for name, value in trace.metrics.items() if value is not None}
    used = {"tool_calls": float(len(trace.tool_messages))} if trace.tools else {}
    return Finish(float(trace.reward), {**used, **rewards, **metrics})


def _packed(replies: list[Reply]) -> bytes:
    plain = [(reply.text, reply.truncated, [(call.name, call.arguments) for call in reply.calls]) for reply in replies]
    return zlib.compress(json.dumps(plain).encode())


def _unpacked(said: bytes) -> list[Reply]:
    return [
        Reply(text, truncated=truncated, calls=tuple(ToolCall(name, arguments) for name, arguments in calls))
        for text, truncated, calls in json.loads(zlib.decompress(said))
    ]


def _digest(messages: list[ChatMessage]) -> str:
    text = json.dumps([(message.role, message.content) for message in messages])
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _history(state: VerifiersState) -> str:
    """Key of held episodes: those with equal histories are interchangeable."""
    history = json.dumps([state["row"], state["task"], state["told"]]).encode() + state["said"]
    return hashlib.blake2b(history, digest_size=16).hexdigest()
