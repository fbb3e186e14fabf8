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
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from pydantic import JsonValue

from common.messages import ChatMessage

__all__ = [
    "MAX_STATE_BYTES",
    "ChatMessage",
    "Continue",
    "Environment",
    "EnvironmentUnavailable",
    "Finish",
    "Opening",
    "Reply",
    "Turn",
    "WrongOptions",
]

MAX_STATE_BYTES = 256 * 1024
"""It travels with every turn of every member."""

S = TypeVar("S")


class EnvironmentUnavailable(Exception):
    """Raised by an environment when something that it needs is away: a server, a sandbox, a disk.

    The attempt is void and another one is admitted. Never give reward 0 for what the policy did not do.
    """


class WrongOptions(ValueError):
    """Raised by an environment's constructor; its text is read by whoever submitted the task."""


@dataclass(frozen=True)
class Reply:
    """What the policy said."""

    text: str
    truncated: bool = False
    """The token limit ended it, not the policy."""


@dataclass(frozen=True)
class Opening(Generic[S]):
    """The start of an episode. Every member of a group gets this one."""

    messages: Sequence[ChatMessage]
    state: S
    tools: Sequence[dict[str, JsonValue]] = ()
    """JSON schemas for the chat template."""


@dataclass(frozen=True)
class Continue(Generic[S]):
    """The episode goes on: the policy is given `messages` and asked for another turn."""

    messages: Sequence[ChatMessage]
    state: S


@dataclass(frozen=True)
class Finish:
    """The episode is over."""

    reward: float
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

    async def conclude(self, state: S) -> Finish:
        """The end of an episode whose turns are used up while `step` would go on."""
        del state
        return Finish(0.0, {"out_of_turns": 1.0})
