"""Contract of environments: everything that their authors import.

    class Echo(Environment[str]):
        async def open(self, index: int, seed: int) -> Opening[str]:
            word = random.Random(f"{seed}:{index}").choice(WORDS)
            return Opening([ChatMessage(role="user", content=f"Say {word}.")], state=word)

        async def step(self, state: str, reply: Reply) -> Turn[str]:
            return Finish(1.0 if reply.text.strip() == state else 0.0)

The rules: `open` gives the same prompt for the same index, seed and options, on every replica. One object serves many
episodes concurrently, so what belongs to an episode lives in `state`, which travels with the episode through MessagePack
(tuples come back as lists) and is at most MAX_STATE_BYTES. An environment knows nothing of tokens, tasks or NATS.

Tools (`env_svc/tools/`) are called and answered between an environment's steps, without the environment.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from pydantic import JsonValue

from common.messages import ChatMessage
from common.tool_calls import UNOPENED, Thoughts, ToolCall, without_thoughts
from env_svc.errors import EnvironmentUnavailable, Unsupported, WrongOptions
from env_svc.tools.tool import Tool

__all__ = [
    "MAX_NUMBER", "MAX_STATE_BYTES", "ChatMessage", "Continue", "Environment", "EnvironmentUnavailable", "Finish", "Opening", "Reply",
    "ToolCall", "ToolUsage", "Turn", "Unsupported", "WrongOptions",
]  # fmt: skip

MAX_NUMBER = 1e12
"""Maximum size of a reward or component: sums and squares over all attempts of a step stay far below a float's limit."""
MAX_STATE_BYTES = 256 * 1024
"""Maximum size of a state, which travels with every turn of every member."""

S = TypeVar("S")


@dataclass(frozen=True)
class ToolUsage:
    """Counts of the episode's tool calls so far."""

    calls: int = 0
    """Calls that a tool answered."""
    errors: int = 0
    """Calls that were malformed, unknown, or refused by the tool."""


@dataclass(frozen=True)
class Reply:
    """The policy's reply."""

    text: str
    truncated: bool = False
    """True: the token limit ended the reply."""
    calls: tuple[ToolCall, ...] = ()
    """Calls of the environment's own tools, whose schemas its opening listed."""
    usage: ToolUsage | None = None
    """Counts of tool calls; None if the episode has no tools."""
    thoughts: Thoughts = UNOPENED
    """Location of the reasoning in the text."""

    @property
    def spoken(self) -> str:
        """The text without reasoning; empty if the reply ends inside reasoning that the prompt opened."""
        return without_thoughts(self.text, self.thoughts)


@dataclass(frozen=True)
class Opening(Generic[S]):
    """The start of an episode, which all members of a group share."""

    messages: Sequence[ChatMessage]
    state: S
    tools: Sequence[str | dict[str, JsonValue]] = ()
    """Further tools, beside those of the task and the class. A name: the service answers its calls. A JSON schema, as
    chat templates take them: `step` plays the tool itself and finds its calls in `reply.calls`."""


@dataclass(frozen=True)
class Continue(Generic[S]):
    """The episode continues: the policy gets `messages` and samples another turn."""

    messages: Sequence[ChatMessage]
    state: S


@dataclass(frozen=True)
class Finish:
    """The episode is over."""

    reward: float
    """Reward, finite and between -MAX_NUMBER and MAX_NUMBER, as components are."""
    components: dict[str, float] = field(default_factory=dict[str, float])
    """Parts or measurements with curves of their own. They change the reward if a task weights them."""


Turn = Continue[S] | Finish


class Environment(ABC, Generic[S]):
    """Prompts and rewards. Options of a task are the keyword arguments of the constructor.

    An exception other than EnvironmentUnavailable is a bug of the environment: the attempt is void, with the exception as
    its reason, and a task that meets too many of them fails.
    """

    cpu_bound: ClassVar[bool] = False
    """True: runs in worker processes, one call at a time in each, so it may compute, block and crash.
    False: runs on the service's event loop beside a thousand others, so it must await everything slow."""

    components: ClassVar[Sequence[str]] = ()
    """Names of the components that `Finish` may carry, so that a misspelt weight is found before a task is accepted.
    Empty: any weight is accepted."""

    checks_options: ClassVar[bool] = False
    """True: a constructor with `**options` refuses what a task must not give: paths, addresses, modules, code. False: a task may give
    the constructor's named arguments alone."""

    operator_options: ClassVar[Sequence[str]] = ()
    """Options that only the operator may set: an address, a program, a module. An environment that has any runs only hosted
    (`env_svc/hosted/`), with values from the operator's file; a task that gives one is refused."""

    tools: Sequence[str | Tool] = ()
    """Tools of every episode: names, or objects. An environment on the event loop may set it in its constructor."""

    @classmethod
    def arguments(cls) -> Sequence[str]:
        """Names that may follow the environment's own, as in `reasoning_gym:gcd`; empty when it takes none.

        The constructor gets the chosen one as its first positional argument.
        """
        return ()

    @abstractmethod
    async def open(self, index: int, seed: int) -> Opening[S]:
        """The prompt at `index`, which counts from 0 without end, of the task's `seed`."""

    @abstractmethod
    async def step(self, state: S, reply: Reply) -> Turn[S]:
        """The turn that follows from the policy's reply."""

    async def gold(self, state: S) -> str | None:
        """Reply used only by `marlaas envs check`: one that, turn by turn, earns the full reward from `state` on; None if unknown."""
        del state
        return None

    async def conclude(self, state: S) -> Finish:
        """The end of an episode that has used up its turns, tokens or seconds while `step`, or a tool call, would continue it."""
        del state
        return Finish(0.0)

    async def close(self) -> None:
        """Release connections and the like. `marlaas envs check` calls it at its end; a replica calls it
        never, as its process just ends."""
