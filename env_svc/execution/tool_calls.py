"""Plays any environment with tools.

A reply that calls tools is answered with `tool` messages and never reaches the environment; a reply without a call goes to
its step. What an episode needs to go on elsewhere travels with its state. Tools run on the event loop, whatever process
the environment runs in.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import chain

from common import spec
from common.messages import ChatMessage
from env_svc.calls import Asked, Call, Failed, Last, NotBuilt, Opened, Outcome, Step, failed
from env_svc.concurrency.completion import as_completed_batches, merged
from env_svc.contract import ToolCall
from env_svc.errors import CallError, ToolUnavailable, WrongOptions
from env_svc.execution.executor import NO_LIMITS, EnvironmentExecutor, Ready
from env_svc.execution.tool_state import ToolState
from env_svc.metrics import TOOL_CALLS
from env_svc.tools.call_parser import Malformed, find_calls
from env_svc.tools.tool import Tool
from env_svc.tools.toolbox import Toolbox, ToolSet, schemas


@dataclass(frozen=True)
class _Answer:
    """To one call."""

    text: str
    is_error: bool = False


@dataclass(frozen=True)
class _Asking:
    """A reply whose calls are to be answered."""

    position: int
    step: Step
    notes: ToolState
    kit: ToolSet
    calls: Sequence[ToolCall | Malformed]


@dataclass(frozen=True)
class _Episodes:
    """What the calls of one message have in common."""

    task: str
    environment: spec.EnvironmentSection
    longest_s: float
    limits: spec.Limits
    kit: ToolSet


class ToolCallExecutor:
    """A player that answers tool calls itself and leaves everything else to the one it wraps."""

    def __init__(self, player: EnvironmentExecutor, toolbox: Toolbox) -> None:
        self._player = player
        self._toolbox = toolbox

    async def play(
        self, task: str, environment: spec.EnvironmentSection, calls: Sequence[Call], longest_s: float, limits: spec.Limits = NO_LIMITS
    ) -> AsyncGenerator[Ready, None]:
        """The outcome of every call, each as soon as it is known and within `longest_s`, about."""
        try:
            own = await self._player.tools_of(environment, longest_s)
            kit = await self._kit([*environment.tools, *own], longest_s)
            episodes = _Episodes(task, environment, longest_s, limits, kit)
            forwarded, asking = await self._sorted(episodes, calls)
        except (WrongOptions, ToolUnavailable, NotBuilt) as error:
            outcome = error.failure if isinstance(error, NotBuilt) else _unequipped(error)
            yield [(position, outcome) for position in range(len(calls))]
            return
        sources: list[AsyncGenerator[Ready, None]] = []
        if forwarded:
            sources.append(self._forward(episodes, forwarded))
        if asking:
            sources.append(as_completed_batches(self._answer(episodes, one) for one in asking))
        async with aclosing(merged(sources) if len(sources) > 1 else sources[0]) as batches:
            async for batch in batches:
                yield batch

    async def _sorted(self, episodes: _Episodes, calls: Sequence[Call]) -> tuple[dict[int, tuple[Call, ToolState | None]], list[_Asking]]:
        """What the environment plays, by position, and what is answered here."""
        forwarded: dict[int, tuple[Call, ToolState | None]] = {}
        asking: list[_Asking] = []
        for position, call in enumerate(calls):
            notes, state = ToolState.take(call.state) if isinstance(call, Step) else (None, b"")
            if not isinstance(call, Step) or notes is None:
                forwarded[position] = call, None
                continue
            kit = {**episodes.kit, **await self._kit(notes.names, episodes.longest_s)}
            found = find_calls(call.reply.text, {**schemas(kit), **notes.own})
            if call.reply.truncated:  # what it began, nobody ended
                found = [one for one in found if isinstance(one, ToolCall)]
            own = tuple(one for one in found if isinstance(one, ToolCall) and one.name in notes.own)
            step = replace(call, state=state, reply=replace(call.reply, calls=own, usage=notes.usage))
            if not found or own:
                forwarded[position] = step, notes
            elif call.last is not None:
                forwarded[position] = replace(step, is_over=True), notes
            else:
                asking.append(_Asking(position, step, notes, kit, found))
        return forwarded, asking

    async def _forward(self, episodes: _Episodes, calls: Mapping[int, tuple[Call, ToolState | None]]) -> AsyncGenerator[Ready, None]:
        positions = list(calls)
        batches = self._player.play(
            episodes.task, episodes.environment, [call for call, _ in calls.values()], episodes.longest_s, episodes.limits
        )
        async with aclosing(batches):
            async for batch in batches:
                done = [(positions[place], outcome) for place, outcome in batch]
                yield [(position, await self._followed(episodes, outcome, *calls[position])) for position, outcome in done]

    async def _followed(self, episodes: _Episodes, outcome: Outcome, call: Call, notes: ToolState | None) -> Outcome:
        """The outcome, with what the episode needs to go on with its tools."""
        if isinstance(outcome, Failed) and outcome.is_late and isinstance(call, Step) and not call.is_over:
            return await self._out_of_time(episodes, call, outcome)
        if isinstance(outcome, Asked) and notes is not None:
            return replace(outcome, state=notes.put(outcome.state))
        if isinstance(outcome, Opened):
            return await self._equipped(episodes, outcome)
        return outcome

    async def _equipped(self, episodes: _Episodes, opened: Opened) -> Outcome:
        try:
            kit = {**episodes.kit, **await self._kit(opened.tool_names, episodes.longest_s)}
        except (WrongOptions, ToolUnavailable) as error:
            return _unequipped(error)
        if not kit and not opened.tools:
            return opened
        notes = ToolState.of(opened.tool_names, opened.tools)
        listed = [kept.tool.schema for kept in kit.values()] if episodes.environment.list_tools else []
        return replace(opened, tools=[*listed, *opened.tools], state=notes.put(opened.state))

    async def _kit(self, wanted: Sequence[str | spec.ToolSection | Tool], longest_s: float) -> ToolSet:
        """Raises: WrongOptions, ToolUnavailable, also where a source of tools takes longer than a call may."""
        timeout_s = self._player.patience_s(longest_s)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._toolbox.kit(wanted)
        except TimeoutError:
            raise ToolUnavailable(f"the tools were not ready within {timeout_s:g} s") from None

    # ----------------------------------------------------------------------------------------------------------- calls

    async def _answer(self, episodes: _Episodes, asking: _Asking) -> tuple[int, Outcome]:
        """`tool` messages for one reply's calls, all made at the same time."""
        limits = episodes.limits
        made = [_call(asking.kit, call, min(limits.tool_timeout_s, episodes.longest_s)) for call in asking.calls[: limits.max_calls]]
        try:
            async with asyncio.timeout(limits.max_turn_s):
                answers = await asyncio.gather(*made)
        except TimeoutError:
            return asking.position, await self._out_of_time(episodes, asking.step, failed("its tools were too slow", is_late=True))
        for answer in answers:
            if isinstance(answer, Failed):
                return asking.position, answer
        beyond = [_Answer(f"not called: at most {limits.max_calls} calls are made for one reply", is_error=True)]
        given = [*(one for one in answers if isinstance(one, _Answer)), *beyond * (len(asking.calls) - len(made))]
        messages = [ChatMessage(role="tool", content=_cut(one.text, limits.max_answer_chars)) for one in given]
        notes = asking.notes.after(sum(not one.is_error for one in given), sum(one.is_error for one in given))
        return asking.position, Asked(messages, notes.put(asking.step.state))

    async def _out_of_time(self, episodes: _Episodes, step: Step, late: Failed) -> Outcome:
        """The end of an episode whose turn took longer than its task allows; `late` where only the deployment does not."""
        limits = episodes.limits
        if limits.max_turn_s is None:
            return late
        over = replace(step, last=Last("seconds", limits.at_limit), is_over=True)
        batches = self._player.play(episodes.task, episodes.environment, [over], episodes.longest_s, limits)
        async with aclosing(batches):
            outcomes = list(chain.from_iterable([batch async for batch in batches]))
        return outcomes[0][1]


def _unequipped(error: WrongOptions | ToolUnavailable) -> Failed:
    """The failure of an episode that has not the tools that it needs."""
    return failed(str(error), is_infrastructure=isinstance(error, ToolUnavailable))


async def _call(kit: ToolSet, call: ToolCall | Malformed, timeout_s: float) -> _Answer | Failed:
    """Raises nothing but a cancellation."""
    answer = await _made(kit, call, timeout_s)
    TOOL_CALLS.labels("failed" if isinstance(answer, Failed) else "refused" if answer.is_error else "answered").inc()
    return answer


async def _made(kit: ToolSet, call: ToolCall | Malformed, timeout_s: float) -> _Answer | Failed:
    if isinstance(call, Malformed):
        return _Answer(f"Error: {call.complaint}", is_error=True)
    kept = kit.get(call.name)
    if kept is None:
        return _Answer(f"Error: there is no tool '{call.name:.40}'; the tools are: {', '.join(sorted(kit))}", is_error=True)
    objection = kept.objection(call.arguments)
    if objection is not None:
        return _Answer(f"Error: {objection}", is_error=True)
    try:
        async with asyncio.timeout(timeout_s):
            return _Answer(await kept.tool.call(call.arguments))
    except CallError as error:
        return _Answer(f"Error: {error}", is_error=True)
    except ToolUnavailable as error:
        return failed(f"tool '{call.name}' is unavailable: {error}", is_infrastructure=True)
    except TimeoutError:
        return failed(f"tool '{call.name}' did not answer within {timeout_s:g} s", is_infrastructure=True)
    except Exception as error:  # the boundary to other people's code
        return failed(f"tool '{call.name}' failed: {type(error).__name__}: {error}")


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    mark = f"... ({len(text)} characters)"
    return text[: max(0, most - len(mark))] + mark
