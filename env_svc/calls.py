"""Calls of environments and their outcomes: every failure is a value.

The same code runs on the event loop, in worker processes and in hosts. States are packed, so only small plain values cross
a process boundary, and never an exception of a class that the other side lacks.
"""

import asyncio
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, SupportsFloat, cast

import msgpack
from pydantic import JsonValue

from common.fairness.fair_queue import Claimant
from common.formats.strict_json import whole
from common.messages import UNSUPPORTED, ChatMessage
from env_svc.contract import MAX_NUMBER, MAX_STATE_BYTES, Continue, Finish, Opening, Reply, Turn
from env_svc.errors import EnvironmentUnavailable, Unsupported, WrongOptions
from env_svc.registry import AnyEnvironment

MAX_FAILURE_CHARS = 500


@dataclass(frozen=True)
class OpenCall:
    """Request for the prompt at `row`."""

    row: int
    seed: int


@dataclass(frozen=True)
class FinalTurn:
    """Reason why no turn may follow this one."""

    limit: Literal["turns", "tokens", "seconds"]
    """The limit that the episode has used up."""
    rule: Literal["score", "zero", "void"] = "score"
    """How the episode is scored: the task's `limits.at_limit`."""


@dataclass(frozen=True)
class StepCall:
    """Request for the turn that follows from a reply."""

    row: int
    """Row of the prompt, for messages about failures."""
    state: bytes
    reply: Reply
    last: FinalTurn | None = None
    is_over: bool = False
    """True: the episode ends without a step for this reply. Then `last` must be set."""


@dataclass(frozen=True)
class Opened:
    messages: list[ChatMessage]
    tools: list[dict[str, JsonValue]]
    """Schemas for the chat template."""
    state: bytes
    tool_names: tuple[str, ...] = ()
    """Names of the tools that the opening requests."""
    has_tools: bool = False
    """Whether replies may call tools, including tools that the prompt does not list."""
    worked_s: float = field(default=0.0, compare=False)
    """Seconds that a worker or hosted process spent on the call; 0 on the event loop, where calls overlap."""


@dataclass(frozen=True)
class Continued:
    """The episode continues with `messages`."""

    messages: list[ChatMessage]
    state: bytes
    worked_s: float = field(default=0.0, compare=False)
    """As in `Opened`; the same holds for `Scored` and `Failed`."""


@dataclass(frozen=True)
class Scored:
    reward: float
    components: dict[str, float]
    worked_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Failed:
    """The attempt is void."""

    reason: str
    is_infrastructure: bool = False
    """True: not known to be the environment's fault, so a retry may succeed."""
    is_late: bool = False
    """True: the call exceeded its timeout."""
    worked_s: float = field(default=0.0, compare=False)


Call = OpenCall | StepCall


@dataclass(frozen=True)
class EnvironmentJob:
    """Calls of one task for one environment."""

    claimant: Claimant
    name: str
    options: dict[str, JsonValue]
    calls: Sequence[Call]
    timeout_s: float
    """Timeout of each call."""
    ends_at: float
    """Deadline on the monotonic clock: a job still waiting then does not start, so that it occupies no worker."""


Outcome = Opened | Continued | Scored | Failed


class _BrokenContract(Exception):
    """The environment returned a value that the contract does not allow."""


class BuildFailed(Exception):
    """The environment could not be built. `failure`: the outcome of its calls."""

    def __init__(self, failure: Failed) -> None:
        super().__init__(failure.reason)
        self.failure = failure


def build_safely(name: str, build: Callable[[], AnyEnvironment]) -> AnyEnvironment:
    """The environment that `build` returns. Raises: BuildFailed, whatever `build` raises."""
    try:
        return build()
    except WrongOptions as error:
        raise BuildFailed(failed(str(error))) from error
    except EnvironmentUnavailable as error:
        raise BuildFailed(failed(f"environment '{name}' is unavailable: {error}", is_infrastructure=True)) from error
    except BaseException as error:  # the boundary to other people's code, as in `perform`
        raise BuildFailed(failed(f"environment '{name}' cannot be built: {type(error).__name__}: {error}")) from error


async def perform(environment: AnyEnvironment, name: str, call: Call) -> Outcome:
    """The outcome of one call. Raises nothing but a cancellation from outside."""
    try:
        if isinstance(call, OpenCall):
            return _opened(await environment.open(call.row, call.seed))
        return await _step(environment, call)
    except EnvironmentUnavailable as error:
        return failed(f"environment '{name}' is unavailable (row {call.row}): {error}", is_infrastructure=True)
    except Unsupported as error:
        return failed(f"{UNSUPPORTED} (row {call.row}): {error}")
    except _BrokenContract as error:
        return failed(f"environment '{name}' (row {call.row}): {error}")
    except asyncio.CancelledError:
        runner = asyncio.current_task()
        if runner is None or runner.cancelling():
            raise
        return failed(f"environment '{name}' failed on row {call.row}: it cancelled itself")
    except BaseException as error:  # the boundary to other people's code: SystemExit would end the replica
        return failed(f"environment '{name}' failed on row {call.row}: {type(error).__name__}: {error}")


def failed(reason: str, *, is_infrastructure: bool = False, is_late: bool = False) -> Failed:
    """A failure with a reason cut to MAX_FAILURE_CHARS, as it travels in a header."""
    reason = whole(reason)
    return Failed(reason if len(reason) <= MAX_FAILURE_CHARS else reason[: MAX_FAILURE_CHARS - 1] + "…", is_infrastructure, is_late)


async def _step(environment: AnyEnvironment, call: StepCall) -> Outcome:
    state: object = msgpack.unpackb(call.state, strict_map_key=False)
    turn: Turn[object] = Continue((), state) if call.is_over else await environment.step(state, call.reply)
    if isinstance(turn, Continue) and call.last is not None:
        return await _at_limit(environment, turn.state, call, call.last)
    if isinstance(turn, Continue):
        return Continued(_messages("Continue", turn.messages), _packed(turn.state))
    return _scored("step", turn, call.reply)


async def _at_limit(environment: AnyEnvironment, state: object, call: StepCall, last: FinalTurn) -> Outcome:
    if last.rule == "void":
        return failed(f"the episode used up its {last.limit}, and limits.at_limit is 'void'")
    finish = await environment.conclude(state) if last.rule == "score" else Finish(0.0)
    return _scored("conclude", finish, call.reply, {f"out_of_{last.limit}": 1.0})


def _scored(where: str, finish: object, reply: Reply, more: dict[str, float] | None = None) -> Scored:
    if not isinstance(finish, Finish):
        raise _BrokenContract(f"{where} returned {type(finish).__name__}, expected {'Continue or ' * (where == 'step')}Finish")
    components = {whole(str(name)): _number(f"component '{name}'", value) for name, value in finish.components.items()}
    usage = {} if reply.usage is None else {"tool_calls": float(reply.usage.calls), "tool_errors": float(reply.usage.errors)}
    return Scored(_number("reward", finish.reward), {**usage, **(more or {}), **components})


def _opened(opening: object) -> Opened:
    if not isinstance(opening, Opening):
        raise _BrokenContract(f"open returned {type(opening).__name__}, expected Opening")
    given = cast("Opening[object]", opening)
    tools = [_schema(tool) for tool in given.tools if not isinstance(tool, str)]
    names = tuple(whole(tool) for tool in given.tools if isinstance(tool, str))
    return Opened(_messages("Opening", given.messages), tools, _packed(given.state), names)


def _schema(tool: object) -> dict[str, JsonValue]:
    """A tool's schema as chat templates and the parser of calls take it."""
    if not isinstance(tool, Mapping) or not isinstance(tool.get("function", tool), Mapping):
        raise _BrokenContract(f"Opening has the tool {tool!r:.60}, expected a name or a schema")
    try:
        json.dumps(tool, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _BrokenContract(f"Opening has a tool whose schema is not JSON: {error}") from None
    return dict(cast("Mapping[str, JsonValue]", tool))


def _messages(where: str, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    found: list[object] = list(messages)
    if not found:
        raise _BrokenContract(f"{where} has no messages")
    for message in found:
        if not isinstance(message, ChatMessage):
            raise _BrokenContract(f"{where} holds a {type(message).__name__}, expected ChatMessage")
    messages = cast("list[ChatMessage]", found)
    return [one if whole(one.content) == one.content else one.model_copy(update={"content": whole(one.content)}) for one in messages]


def _packed(state: object) -> bytes:
    try:
        packed = msgpack.packb(state)
    except (TypeError, ValueError, OverflowError) as error:
        raise _BrokenContract(f"its state cannot be packed as MessagePack: {_unpackable('state', state)}: {error}") from None
    assert packed is not None
    if len(packed) > MAX_STATE_BYTES:
        raise _BrokenContract(f"its state has {len(packed)} bytes, at most {MAX_STATE_BYTES} can travel with a turn")
    return packed


def _unpackable(place: str, value: object) -> str:
    """Path to the innermost part of a state that cannot be packed."""
    parts: Iterable[tuple[object, object]] = ()
    if isinstance(value, dict):
        parts = cast("dict[object, object]", value).items()
    elif isinstance(value, list | tuple):
        parts = enumerate(cast("Sequence[object]", value))
    for key, part in parts:
        try:
            msgpack.packb(part)
        except (TypeError, ValueError, OverflowError):
            return _unpackable(f"{place}[{key!r:.40}]", part)
    return place


def _number(what: str, value: object) -> float:
    """A number of any library, or a boolean, as a float."""
    try:
        number = float(value) if isinstance(value, SupportsFloat) else None
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError, RuntimeError):  # several numbers, or one that its library cannot convert
        number = None
    if number is None:
        raise _BrokenContract(f"{what} is {value!r:.60}, expected a number")
    if not is_bounded(number):
        raise _BrokenContract(f"{what} is {value!s:.60}, expected a finite number of at most {MAX_NUMBER:g} either way")
    return number


def is_bounded(value: float) -> bool:
    """Whether a reward or a component is finite and within MAX_NUMBER."""
    return -MAX_NUMBER <= value <= MAX_NUMBER
