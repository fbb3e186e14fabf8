"""Executor of tool calls, around the executor of environments.

A reply that calls tools is answered with `tool` messages and never reaches the environment; a reply without a call goes to
its step. The episode's tool state travels with its state, so any replica can resume it. Tools run on the event loop, in
whichever process the environment runs.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import chain

import msgpack
from prometheus_client import Counter
from pydantic_core import to_jsonable_python

from common import spec
from common.fairness.fair_queue import Claimant
from common.formats.strict_json import whole
from common.messages import BlobRef, ChatMessage, is_own
from common.tool_calls import MalformedCall, Schema, ToolCall, find_calls
from env_svc.allowed import ONLY_INSTALLED, AllowedNames
from env_svc.calls import BuildFailed, Call, Continued, Failed, FinalTurn, Opened, Outcome, StepCall, failed
from env_svc.completion import as_completed_batches, merge
from env_svc.contract import Reply
from env_svc.errors import CallError, ToolUnavailable, WrongOptions
from env_svc.execution.executor import NO_LIMITS, EnvironmentExecutor, OutcomeBatch
from env_svc.execution.tool_state import ToolState
from env_svc.tools.tool import Tool
from env_svc.tools.toolbox import Toolbox, ToolSet, schemas

TOOL_CALLS = Counter("marlaas_env_tool_calls_total", "Tool calls: answered, refused with an answer that says why, failed", ["outcome"])

LONG_CHARS = 16_384
"""Maximum length of a reply that is parsed on the event loop, in at most a few milliseconds."""


@dataclass(frozen=True)
class _ToolAnswer:
    """The answer to one call."""

    text: str
    is_error: bool = False


@dataclass(frozen=True)
class _ToolTurn:
    """A reply whose tool calls are answered here."""

    position: int
    step: StepCall
    tool_state: ToolState
    tool_set: ToolSet
    calls: Sequence[ToolCall | MalformedCall]


@dataclass(frozen=True)
class _CallContext:
    """Arguments shared by all calls of one message."""

    claimant: Claimant
    environment: spec.EnvironmentSection
    remaining_s: float
    limits: spec.Limits
    tool_set: ToolSet
    package: BlobRef | None


class ToolCallExecutor:
    """Answers tool calls and forwards every other call to the executor that it wraps."""

    def __init__(self, executor: EnvironmentExecutor, toolbox: Toolbox, allowed: AllowedNames = ONLY_INSTALLED) -> None:
        """`allowed`: tools that an opening may name."""
        self._executor = executor
        self._toolbox = toolbox
        self._allowed = allowed

    async def run(
        self,
        claimant: Claimant,
        environment: spec.EnvironmentSection,
        calls: Sequence[Call],
        remaining_s: float,
        limits: spec.Limits = NO_LIMITS,
        package: BlobRef | None = None,
    ) -> AsyncGenerator[OutcomeBatch, None]:
        """As `EnvironmentExecutor.run`."""
        try:
            own = await self._executor.tools_of(environment, remaining_s)
            tool_set = await self._tool_set([*environment.tools, *own], remaining_s)
            context = _CallContext(claimant, environment, remaining_s, limits, tool_set, package)
            forwarded, tool_turns = await self._split(context, calls)
        except (WrongOptions, ToolUnavailable, BuildFailed) as error:
            outcome = error.failure if isinstance(error, BuildFailed) else _tools_failure(error)
            yield [(position, outcome) for position in range(len(calls))]
            return
        sources: list[AsyncGenerator[OutcomeBatch, None]] = []
        if forwarded:
            sources.append(self._forward(context, forwarded))
        if tool_turns:
            sources.append(as_completed_batches(self._answer(context, one) for one in tool_turns))
        async with aclosing(merge(sources) if len(sources) > 1 else sources[0]) as batches:
            async for batch in batches:
                yield batch

    async def _split(
        self, context: _CallContext, calls: Sequence[Call]
    ) -> tuple[dict[int, tuple[Call, ToolState | None]], list[_ToolTurn]]:
        """Calls for the environment, by position, and replies whose tool calls are answered here."""
        forwarded: dict[int, tuple[Call, ToolState | None]] = {}
        tool_turns: list[_ToolTurn] = []
        for position, call in enumerate(calls):
            tool_state, state = ToolState.unwrap(call.state) if isinstance(call, StepCall) else (None, b"")
            if not isinstance(call, StepCall) or tool_state is None:
                forwarded[position] = call, None
                continue
            tool_set = {**context.tool_set, **await self._tools_of_opening(context, tool_state.names)}
            found = await _found_calls(call.reply, {**schemas(tool_set), **tool_state.own})
            if call.reply.truncated:  # an unfinished call is no error of the policy
                found = [one for one in found if isinstance(one, ToolCall)]
            own = tuple(one for one in found if isinstance(one, ToolCall) and one.name in tool_state.own)
            step = replace(call, state=state, reply=replace(call.reply, calls=own, usage=tool_state.usage))
            if not found or own:
                forwarded[position] = step, tool_state
            elif call.last is not None:
                forwarded[position] = replace(step, is_over=True), tool_state
            else:
                tool_turns.append(_ToolTurn(position, step, tool_state, tool_set, found))
        return forwarded, tool_turns

    async def _forward(
        self, context: _CallContext, calls: Mapping[int, tuple[Call, ToolState | None]]
    ) -> AsyncGenerator[OutcomeBatch, None]:
        positions, plain = list(calls), [call for call, _ in calls.values()]
        batches = self._executor.run(context.claimant, context.environment, plain, context.remaining_s, context.limits, context.package)
        async with aclosing(batches):
            async for batch in batches:
                done = [(positions[place], outcome) for place, outcome in batch]
                yield [(position, await self._followed(context, outcome, *calls[position])) for position, outcome in done]

    async def _followed(self, context: _CallContext, outcome: Outcome, call: Call, tool_state: ToolState | None) -> Outcome:
        """The outcome, with the episode's tool state around its state."""
        if isinstance(outcome, Failed) and outcome.is_late and isinstance(call, StepCall) and not call.is_over:
            return await self._out_of_time(context, call, outcome)
        if isinstance(outcome, Continued) and tool_state is not None:
            return replace(outcome, state=tool_state.wrap(outcome.state))
        if isinstance(outcome, Opened):
            return await self._with_tools(context, outcome)
        return outcome

    async def _with_tools(self, context: _CallContext, opened: Opened) -> Outcome:
        try:
            tool_set = {**context.tool_set, **await self._tools_of_opening(context, opened.tool_names)}
        except (WrongOptions, ToolUnavailable) as error:
            return replace(_tools_failure(error), worked_s=opened.worked_s)
        if not tool_set and not opened.tools:
            return opened
        tool_state = ToolState.at_opening(opened.tool_names, opened.tools)
        listed = [validated.tool.schema for validated in tool_set.values()] if context.environment.list_tools else []
        return replace(opened, tools=[*listed, *opened.tools], state=tool_state.wrap(opened.state), has_tools=True)

    async def _tools_of_opening(self, context: _CallContext, names: Sequence[str]) -> ToolSet:
        """Tools that an opening names. Raises: WrongOptions, also for a name that is not allowed; ToolUnavailable."""
        tenant = context.claimant.tenant if is_own(context.environment.name) else None
        for name in names:
            if objection := self._allowed.tool_objection(name, tenant):
                raise WrongOptions(objection)
        return await self._tool_set(names, context.remaining_s)

    async def _tool_set(self, wanted: Sequence[str | spec.ToolSection | Tool], remaining_s: float) -> ToolSet:
        """Raises: WrongOptions, ToolUnavailable, also when a tool source exceeds the time of a call."""
        timeout_s = self._executor.bounded_timeout_s(remaining_s)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._toolbox.tool_set(wanted)
        except TimeoutError:
            raise ToolUnavailable(f"the tools were not ready within {timeout_s:g} s") from None

    # ----------------------------------------------------------------------------------------------------------- calls

    async def _answer(self, context: _CallContext, turn: _ToolTurn) -> tuple[int, Outcome]:
        """`tool` messages for one reply's calls, which run concurrently."""
        limits, timeout_s = context.limits, min(context.limits.tool_timeout_s, context.remaining_s)
        made = [_call(turn.tool_set, call, timeout_s) for call in turn.calls[: limits.max_calls]]
        try:
            async with asyncio.timeout(limits.max_turn_s):
                answers = await asyncio.gather(*made)
        except TimeoutError:
            return turn.position, await self._out_of_time(context, turn.step, failed("its tools were too slow", is_late=True))
        for answer in answers:
            if isinstance(answer, Failed):
                return turn.position, answer
        beyond = [_ToolAnswer(f"not called: at most {limits.max_calls} calls are made for one reply", is_error=True)]
        given = [*(one for one in answers if isinstance(one, _ToolAnswer)), *beyond * (len(turn.calls) - len(made))]
        names = [call.name if isinstance(call, ToolCall) else None for call in turn.calls]
        texts = [_cut(whole(one.text), limits.max_answer_chars) for one in given]
        messages = [ChatMessage(role="tool", content=text, name=name) for text, name in zip(texts, names, strict=True)]
        errors = sum(one.is_error for one in given)
        return turn.position, Continued(messages, turn.tool_state.counting(len(given) - errors, errors).wrap(turn.step.state))

    async def _out_of_time(self, context: _CallContext, step: StepCall, late: Failed) -> Outcome:
        """Outcome of an episode whose turn exceeded its task's time limit; `late` if only the deployment's limit was exceeded."""
        limits = context.limits
        if limits.max_turn_s is None:
            return late
        over = replace(step, last=FinalTurn("seconds", limits.at_limit), is_over=True)
        batches = self._executor.run(context.claimant, context.environment, [over], context.remaining_s, limits, context.package)
        async with aclosing(batches):
            outcomes = list(chain.from_iterable([batch async for batch in batches]))
        [(_, outcome)] = outcomes
        return replace(outcome, worked_s=outcome.worked_s + late.worked_s)


async def _found_calls(reply: Reply, tools: Mapping[str, Schema]) -> list[ToolCall | MalformedCall]:
    """`find_calls`, for a long reply in a thread: it takes up to 0.3 s, and the event loop serves every tenant."""
    if len(reply.text) <= LONG_CHARS:
        found = find_calls(reply.text, tools, reply.thoughts)
    else:
        found = await asyncio.to_thread(find_calls, reply.text, tools, reply.thoughts)
    return [_packable(one) for one in found]


def _packable(call: ToolCall | MalformedCall) -> ToolCall | MalformedCall:
    """`call`, or a MalformedCall if its arguments cannot be packed: the environment may run in another process."""
    try:
        msgpack.packb([] if isinstance(call, MalformedCall) else call.arguments)
    except (OverflowError, ValueError) as error:
        return MalformedCall(f"the arguments of the tool call cannot be passed on: {error}")
    return call


def _tools_failure(error: WrongOptions | ToolUnavailable) -> Failed:
    """The failure of an episode whose tools cannot be built."""
    return failed(str(error), is_infrastructure=isinstance(error, ToolUnavailable))


async def _call(tool_set: ToolSet, call: ToolCall | MalformedCall, timeout_s: float) -> _ToolAnswer | Failed:
    """Run one tool call and count it. Raises only CancelledError."""
    answer = await _call_tool(tool_set, call, timeout_s)
    TOOL_CALLS.labels("failed" if isinstance(answer, Failed) else "refused" if answer.is_error else "answered").inc()
    return answer


async def _call_tool(tool_set: ToolSet, call: ToolCall | MalformedCall, timeout_s: float) -> _ToolAnswer | Failed:
    if isinstance(call, MalformedCall):
        return _ToolAnswer(f"Error: {call.complaint}", is_error=True)
    tool = tool_set.get(call.name)
    if tool is None:
        return _ToolAnswer(f"Error: there is no tool '{call.name:.40}'; the tools are: {', '.join(sorted(tool_set))}", is_error=True)
    wrong = tool.error_in(call.arguments)
    if wrong is not None:
        return _ToolAnswer(f"Error: {wrong}", is_error=True)
    try:
        async with asyncio.timeout(timeout_s):
            return _ToolAnswer(_text(await tool.tool.call(call.arguments)))
    except CallError as error:
        return _ToolAnswer(f"Error: {error}", is_error=True)
    except ToolUnavailable as error:
        return failed(f"tool '{call.name}' is unavailable: {error}", is_infrastructure=True)
    except TimeoutError:
        return failed(f"tool '{call.name}' did not answer within {timeout_s:g} s", is_infrastructure=True)
    except asyncio.CancelledError:
        runner = asyncio.current_task()
        if runner is None or runner.cancelling():
            raise
        return failed(f"tool '{call.name}' failed: it cancelled itself")
    except BaseException as error:  # the boundary to other people's code: SystemExit would end the replica
        return failed(f"tool '{call.name}' failed: {type(error).__name__}: {error}")


def _text(answer: object) -> str:
    """Tool result as text. Raises: TypeError if it cannot be written as JSON."""
    if answer is None or isinstance(answer, str):
        return answer or ""
    try:
        return json.dumps(to_jsonable_python(answer), ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise TypeError(f"its answer, a {type(answer).__name__}, is neither text nor JSON: {error}") from None


def _cut(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    mark = f"... ({len(text)} characters)"
    return text[: max(0, max_chars - len(mark))] + mark
