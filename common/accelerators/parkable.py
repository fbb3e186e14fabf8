"""What an executor's process can do with its state: the seam between leases and a sampler or trainer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from common.accelerators.types import Function, Tier
from common.errors import MarlaasError


class NoMemory(MarlaasError):
    """The device or the host has no memory for the state that was to move. The state is where it was, or deeper."""


class StateMismatch(MarlaasError):
    """What woke up computes other numbers than before it was parked; nothing was computed with it for any task."""


@dataclass(frozen=True)
class WorkDone:
    """What an executor did since the last call of `taken`."""

    by_task: Mapping[str, int] = field(default_factory=dict[str, int])
    """Sampled tokens, or milliseconds of steps, by task."""
    busy_s: float = 0.0
    """Seconds in which at least one operation was in progress."""
    pieces: int = 0
    """Operations that ended: messages answered, or steps taken."""
    score_s: float = 0.0
    """Of `busy_s`, those of forward passes without a gradient: a step has them, and they are of the function `score`."""


@dataclass(frozen=True)
class Load:
    """Work of an executor at one moment."""

    running: Function | None = None
    """Function of the operation in progress; None where nothing runs."""
    begun: int = 0
    """Operations begun and not ended, frozen ones included."""
    left_s: float | None = None
    """Expected seconds until they have ended; None where nothing is begun, or nothing is known."""
    messages: int | None = None
    """Messages that these operations are of. None: all that the process has; it then keeps none that it has not begun."""
    preparing: int = 0
    """Operations that cannot be interrupted and are read or restored now: parking waits for these too, and one may begin at any moment."""


class Parkable(Protocol):
    """A sampler or trainer whose state moves between tiers. One wake or park at a time; both may take seconds."""

    @property
    def tier(self) -> Tier:
        """Where its state is now."""
        ...

    @property
    def device_bytes(self) -> int:
        """Bytes that it needs on the device while awake; known before its first wake, at least as an estimate."""
        ...

    @property
    def host_bytes(self) -> int:
        """Bytes that it needs in host memory in the tier `host`."""
        ...

    @property
    def load(self) -> Load: ...

    async def wake(self) -> None:
        """State to the device, checked; then frozen operations continue and messages are taken.

        Raises: NoMemory; WrongState when a canary disagrees; Fatal when the device broke. It then is where it was, or deeper.
        """
        ...

    async def park(self, tier: Tier, drain_s: float | None) -> float:
        """Seconds of the move itself, without those for which operations were waited for.

        Take no message any more; let what runs end for up to `drain_s` seconds (None: for as long as it takes), freeze the rest where
        that is possible and wait for it where it is not; then move the state to `tier`, or to the deepest tier that it has. What was
        received and not begun is handed back, or kept and counted (`Load.messages`).
        """
        ...

    def end_drain(self) -> None:
        """Have a `park` in progress wait no longer for what can be frozen. Nothing happens at any other time."""
        ...

    def taken(self) -> WorkDone:
        """What was done since the last call."""
        ...
