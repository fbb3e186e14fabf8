"""One running episode of verifiers, suspended while it waits for the policy.

verifiers cannot play single turns: `Env.run` is a program that holds a conversation with its agent and computes the user's
part in between. Here it runs unchanged, with a `PolicyAgent` as its agent. When verifiers would call a model, the program
waits for the policy's reply, in this process or in another that has replayed the earlier replies.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
from pydantic import JsonValue
from verifiers.v1.session import call_hook  # pyright: ignore[reportMissingImports]
from verifiers.v1.state import state_cls  # pyright: ignore[reportMissingImports]
from verifiers.v1.utils.decorators import invoke  # pyright: ignore[reportMissingImports]

from common.tool_calls import without_calls
from env_svc.adapters.verifiers_tools import EpisodeTools, ServedToolset
from env_svc.contract import ChatMessage, Reply


class HeldEpisode:
    """A running program of verifiers, and the replies that it waits for."""

    def __init__(self, program: Callable[["HeldEpisode"], Coroutine[Any, Any, None]]) -> None:
        self._asked: asyncio.Future[list[ChatMessage]] = asyncio.get_running_loop().create_future()
        self._replied: asyncio.Future[Reply | None] | None = None
        self._runner = asyncio.create_task(program(self))
        self.trace: Any = None
        """The `vf.Trace` of the agent's conversation; None before the conversation begins."""
        self.tools: list[dict[str, JsonValue]] = []

    async def begun(self) -> list[ChatMessage]:
        """The first messages to the policy. Raises: RuntimeError when there are none."""
        messages = await self._next()
        if messages is None:
            raise RuntimeError("the episode is over before it began")
        return messages

    async def answered(self, reply: Reply | None) -> list[ChatMessage] | None:
        """The messages after the policy's reply; None when the episode is over. Without a reply the program must end."""
        assert self._replied is not None
        self._asked = asyncio.get_running_loop().create_future()
        self._replied.set_result(reply)
        return await self._next()

    async def ask(self, messages: list[ChatMessage]) -> Reply | None:
        """Wait for the policy's reply; called by the program. None if the policy has no turn left."""
        if self._asked.done():
            raise RuntimeError("the agent is asked twice concurrently: one policy replies here, to one conversation")
        self._replied = asyncio.get_running_loop().create_future()
        self._asked.set_result(messages)
        return await self._replied

    async def end(self) -> None:
        """Cancel the program."""
        self._runner.cancel()
        await asyncio.gather(self._runner, return_exceptions=True)

    async def _next(self) -> list[ChatMessage] | None:
        try:
            await asyncio.wait({self._asked, self._runner}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # its position is unknown from here on
            await self.end()
            raise
        if self._runner.done():
            self._runner.result()
            return None
        return self._asked.result()


@dataclass(frozen=True)
class PromptStyle:
    """A task's options for prompts and replies."""

    system: str = ""
    """System prompt in place of the taskset's own."""
    instruction: str = ""
    """Text after the first message that asks for a reply."""
    reasoning: bool = False
    """True: text inside `<think>` becomes `reasoning_content`, and is no part of the reply."""


class PolicyAgent:
    """Agent of an environment of verifiers (`agents.<name>`), which holds one conversation."""

    def __init__(self, episode: HeldEpisode, name: str, config: Any, shared: Sequence[ServedToolset], manner: PromptStyle) -> None:
        """`config`: a `vf.AgentConfig`."""
        self._episode, self._shared, self._manner = episode, shared, manner
        self._info = vf.AgentInfo(config=config, name=name)
        self.trainable = True

    async def run(self, task: Any, *, on_trace: Callable[[Any], None] | None = None) -> Any:
        """`vf.Agent.run`: the conversation from the task's prompt until the policy calls no tool."""
        if not task.data.prompt:
            raise ValueError(f"task {task.data.idx} has no prompt of text alone")
        async with self._conversation(task, on_trace) as conversation:
            await conversation.turn()
            conversation.trace.stop("agent_completed")
        return conversation.trace

    @asynccontextmanager
    async def interaction(self, task: Any, *, on_trace: Callable[[Any], None] | None = None) -> AsyncGenerator["Conversation", None]:
        """`vf.Agent.interaction`: a conversation in which the caller plays the user."""
        async with self._conversation(task, on_trace) as conversation:
            yield conversation
            conversation.trace.stop("user_closed")

    @asynccontextmanager
    async def _conversation(self, task: Any, on_trace: Callable[[Any], None] | None) -> AsyncGenerator["Conversation", None]:
        if self._episode.trace is not None:
            raise RuntimeError("the agent plays twice: a trajectory has one conversation")
        self._info.trainable = self.trainable
        about = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        trace = self._episode.trace = vf.Trace(task=about, agent=self._info, state=state_cls(type(task))())
        if on_trace is not None:
            on_trace(trace)
        await invoke(task.setup, {"trace": trace, "runtime": None})
        tools = await EpisodeTools.of(task, self._shared, trace.state)
        self._episode.tools = tools.schemas
        trace.tools = [vf.Tool.model_validate(schema["function"]) for schema in tools.schemas]
        try:
            yield Conversation(self._episode, task, trace, tools, self._manner)
            await invoke(task.finalize, {"trace": trace, "runtime": None})
            await task.score(trace)
            trace.ok = True
        finally:
            await tools.end()


class Conversation:
    """The part of `vf.Interaction` that programs of environments use."""

    def __init__(self, episode: HeldEpisode, task: Any, trace: Any, tools: EpisodeTools, manner: PromptStyle) -> None:
        self._episode, self._tools, self._manner = episode, tools, manner
        self._unsent = _opening(task.data, manner.system)
        """Messages not yet sent to the policy."""
        self._max_turns = trace.agent.config.max_turns
        self._stops = task.hooks("stop")
        self._speaks_first = task.data.prompt is not None
        self._is_over = False
        self.trace = trace

    async def turn(self, message: Any = None) -> Any:
        """A `vf.Segment`: the policy's replies to a text or messages, with its tool calls answered in between."""
        if self._is_over:
            raise RuntimeError("the exchange is over (the run ended); read interaction.trace")
        if (message is None) != self._speaks_first:
            raise ValueError(
                "the task's prompt opens this exchange" if self._speaks_first else "nothing to run a turn on: the task has no prompt"
            )
        self._speaks_first = False
        self._unsent += [vf.UserMessage(content=message)] if isinstance(message, str) else list(message or ())
        if self._manner.instruction and not self.trace.nodes:
            asking = self._unsent[-1]
            self._unsent[-1] = asking.model_copy(update={"content": f"{asking.content}\n\n{self._manner.instruction}"})
        before, turns = len(self.trace.nodes), self.trace.num_turns
        await self._speak()
        if self.trace.num_turns == turns:
            self._is_over = True
            return vf.Segment(messages=[], terminated=True)
        said: list[Any] = []
        for node in self.trace.nodes[before:]:
            if node.sampled or (said and node.message.role == "tool"):
                said.append(node.message)
        return vf.Segment(messages=said)

    async def _speak(self) -> None:
        """Request replies until one calls no tool, or the episode must stop."""
        while not await self._is_stopped():
            reply = await self._episode.ask([_chat_message(message) for message in self._unsent])
            if reply is None:
                self.trace.stop("max_turns")
                return
            calls = self._record(reply)
            self._unsent = [
                vf.ToolMessage(tool_call_id=number, content=await self._tools.call(call), name=call.name)
                for number, call in zip(calls, reply.calls, strict=True)
            ]
            if not calls:
                return

    async def _is_stopped(self) -> bool:
        if self._max_turns is not None and self.trace.num_turns >= self._max_turns:
            self.trace.stop("max_turns")
        for stop in self._stops:
            if self.trace.stop_condition is None and await call_hook(stop, {vf.Trace: self.trace}):
                self.trace.stop(stop.__name__)
        return self.trace.stop_condition is not None

    def _record(self, reply: Reply) -> list[str]:
        """Append the sent messages and the reply to the trace; returns ids of the reply's calls."""
        for message in self._unsent:
            self._append(message, sampled=False)
        number = len(self.trace.nodes)
        ids = [f"call_{number}_{position}" for position in range(len(reply.calls))]
        made = [
            vf.ToolCall(id=one, name=call.name, arguments=json.dumps(call.arguments)) for one, call in zip(ids, reply.calls, strict=True)
        ]
        text, thought = _apart(reply) if self._manner.reasoning else (reply.text, None)
        text = without_calls(text, self._tools.parameters) if made else text
        self._append(vf.AssistantMessage(content=text, reasoning_content=thought, tool_calls=made or None), sampled=True)
        reason = "length" if reply.truncated else "tool_calls" if made else "stop"
        self.trace.calls.append(vf.ModelCall(node=number, finish_reason=reason))
        return ids

    def _append(self, message: Any, *, sampled: bool) -> None:
        place = len(self.trace.nodes)
        parent, tools = (place - 1, []) if place else (None, self.trace.tools)
        self.trace.nodes.append(vf.MessageNode(parent=parent, message=message, sampled=sampled, tools=tools))


def _opening(data: Any, system: str) -> list[Any]:
    """Messages of verifiers before the first reply. Raises: ValueError if a prompt is not only text."""
    given = [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt or [])
    if not all(message.role != "tool" and isinstance(message.content, str) for message in given):
        raise ValueError(f"task {data.idx} has no prompt of text alone")
    first = system or data.system_prompt
    return [*([vf.SystemMessage(content=first)] if first else []), *given]


def _apart(reply: Reply) -> tuple[str, str | None]:
    """The reply's text, and the reasoning before it (None if empty)."""
    marks = reply.thoughts
    text = f"{marks.opening}{reply.text}" if marks.begins_inside else reply.text
    thought, closed, _ = text.rpartition(marks.closing)
    if not closed:
        thought = text.partition(marks.opening)[2]
    return reply.spoken.strip(), thought.replace(marks.opening, "").strip() or None


def _chat_message(message: Any) -> ChatMessage:
    """Convert a message of verifiers. Raises: ValueError if it is not text only."""
    role: Literal["system", "user", "assistant", "tool"] = message.role
    if not isinstance(message.content, str):
        raise ValueError(f"a message of the {role} to the policy is not text alone")
    return ChatMessage(role=role, content=message.content)
