"""What an author of environments needs, and all of it.

    class Echo(Environment[str]):
        async def open(self, index: int, seed: int) -> Opening[str]:
            word = random.Random(f"{seed}:{index}").choice(WORDS)
            return Opening([ChatMessage(role="user", content=f"Say {word}.")], state=word)

        async def step(self, state: str, reply: Reply) -> Turn[str]:
            return Finish(1.0 if reply.text.strip() == state else 0.0)

The rules: `open` gives the same prompt for the same index, seed and options, on every replica. One object serves many
episodes at once, so what belongs to an episode lives in `state`, which travels with the episode through MessagePack
(tuples come back as lists) and is at most MAX_STATE_BYTES. An environment knows nothing of tokens, tasks or NATS.

Tools (`env_svc/tools/`) are called and answered between an environment's steps, without its doing.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from pydantic import JsonValue

from common.messages import ChatMessage
from env_svc.errors import EnvironmentUnavailable, Unsupported, WrongOptions
from env_svc.tools.tool import Tool

__all__ = [
    "MAX_NUMBER",
    "MAX_STATE_BYTES",
    "ChatMessage",
    "Continue",
    "Environment",
    "EnvironmentUnavailable",
    "Finish",
    "Opening",
    "Reply",
    "ToolCall",
    "ToolUsage",
    "Turn",
    "Unsupported",
    "WrongOptions",
]

MAX_NUMBER = 1e12
"""Of rewards and their components: sums and squares over all attempts of a step stay far from what a float can hold."""
MAX_STATE_BYTES = 256 * 1024
"""It travels with every turn of every member."""

S = TypeVar("S")


@dataclass(frozen=True)
class ToolCall:
    """A tool that the policy wants called."""

    name: str
    arguments: dict[str, JsonValue]


@dataclass(frozen=True)
class ToolUsage:
    """What the policy did with its tools in the episode so far."""

    calls: int = 0
    """Calls that a tool answered."""
    errors: int = 0
    """Calls that were malformed, unknown, or refused by the tool."""


@dataclass(frozen=True)
class Reply:
    """What the policy said."""

    text: str
    truncated: bool = False
    """The token limit ended it, not the policy."""
    calls: tuple[ToolCall, ...] = ()
    """Of the environment's own tools: those whose schemas its opening listed."""
    usage: ToolUsage | None = None
    """None where the episode has no tools."""


@dataclass(frozen=True)
class Opening(Generic[S]):
    """The start of an episode. Every member of a group gets this one."""

    messages: Sequence[ChatMessage]
    state: S
    tools: Sequence[str | dict[str, JsonValue]] = ()
    """Beside those that the task and the class name: names of tools, which are called and answered for the environment; or
    JSON schemas, as chat templates take them, of tools that `step` plays itself and finds in `reply.calls`."""


@dataclass(frozen=True)
class Continue(Generic[S]):
    """The episode goes on: the policy is given `messages` and asked for another turn."""

    messages: Sequence[ChatMessage]
    state: S


@dataclass(frozen=True)
class Finish:
    """The episode is over."""

    reward: float
    """Finite, as components are, and MAX_NUMBER at most either way."""
    components: dict[str, float] = field(default_factory=dict[str, float])
    """Parts or measurements worth a curve of their own. They change the reward where a task gives them weights."""


Turn = Continue[S] | Finish


class Environment(ABC, Generic[S]):
    """Prompts and rewards. Options of a task are the keyword arguments of the constructor.

    An exception other than EnvironmentUnavailable is a bug of the environment: the attempt is void, with the exception as
    its reason, and a task that meets too many of them fails.
    """

    cpu_bound: ClassVar[bool] = False
    """True: runs in worker processes, one call at a time in each, so it may compute, block and crash.
    False: runs on the service's event loop beside a thousand others, so it must await whatever takes long."""

    components: ClassVar[Sequence[str]] = ()
    """Names of the components that `Finish` may carry, so that a misspelt weight is found before a task is accepted.
    Empty: any weight is taken."""

    operator_options: ClassVar[Sequence[str]] = ()
    """Options that reach what a task must not choose: an address, a program, a module. An environment that has any runs only
    hosted (`env_svc/hosted/`), where the operator's file gives them; a task that gives one is refused."""

    tools: Sequence[str | Tool] = ()
    """Tools that every episode has: names, or objects. One that runs on the event loop may set it in its constructor."""

    @classmethod
    def arguments(cls) -> Sequence[str]:
        """Names that may follow the environment's own, as in `reasoning_gym:gcd`; empty when it takes none.

        The constructor gets the one that was chosen as its first positional argument.
        """
        return ()

    @abstractmethod
    async def open(self, index: int, seed: int) -> Opening[S]:
        """The prompt at `index`, which counts from 0 without end, of the task's `seed`."""

    @abstractmethod
    async def step(self, state: S, reply: Reply) -> Turn[S]:
        """What follows from the policy's reply."""

    async def gold(self, state: S) -> str | None:
        """A reply that earns the full reward from `state` on, turn by turn; None where nobody knows one.

        Asked by `marlaas envs check` alone, never while a policy plays.
        """
        del state
        return None

    async def conclude(self, state: S) -> Finish:
        """The end of an episode that has used up its turns, tokens or seconds while `step`, or a tool call, would go on."""
        del state
        return Finish(0.0)

    async def close(self) -> None:
        """Let go of connections and the like. Asked by `marlaas envs check` when it has played; a replica's process just ends."""
        return
