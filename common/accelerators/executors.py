"""Functions and states of executors, tiers of their state, what a process can do with it, and policies of an accelerator.

An *executor* is a service process that computes on an accelerator: a pool's sampler or trainer. Its *slice* is its uninterrupted time on
the accelerator, with an epoch that only grows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from common.errors import MarlaasError


class Function(StrEnum):
    """What an executor computes."""

    GENERATE = "generate"
    TRAIN = "train"
    SCORE = "score"
    """Forward passes without a gradient: log-probabilities of the base model or the proximal policy, canaries of new adapters."""

    @property
    def is_interruptible(self) -> bool:
        """Whether an operation may be frozen and continued later: requests to a sampler; neither a step nor a scoring pass."""
        return self is Function.GENERATE


class Tier(StrEnum):
    """Where an executor's state is, from the nearest to the deepest."""

    DEVICE = "device"
    """On the device; paused, unless its executor holds the accelerator."""
    HOST = "host"
    """In host memory; a sampler's KV cache is dropped."""
    DISK = "disk"
    """Dropped, and read again from the model's folder and checkpoints."""
    NONE = "none"
    """Engine closed, process alive."""
    OFF = "off"
    """No process."""

    @property
    def depth(self) -> int:
        return DEPTHS[self]


def off_device(deepest: Tier) -> Tier:
    """Tier of an executor that must leave the device with no time to lose: host memory, or less where its pool allows less."""
    return min(Tier.HOST, deepest, key=lambda tier: tier.depth)


DEPTHS = {tier: depth for depth, tier in enumerate(Tier)}


class ExecutorState(StrEnum):
    """State of an executor.

    cold ──▶ waking ──▶ awake ──▶ parking ──▶ parked ──▶ waking      any of them ──▶ faulty ──▶ waking (after its back-off)
    """

    COLD = "cold"
    """Started, and nothing of it on the device yet."""
    WAKING = "waking"
    AWAKE = "awake"
    PARKING = "parking"
    PARKED = "parked"
    FAULTY = "faulty"
    """It could not wake, or what it woke with failed its check; it computes nothing."""


class Policy(StrEnum):
    """How an accelerator's next slice is chosen."""

    RATIO = "ratio"
    """Response ratio with switch cost."""
    FCFS = "fcfs"
    """First come, first served: the yardstick of `ratio`."""


def executor_name(service: str, pool: str) -> str:
    """Name of an executor, unique on its accelerator. `service`: rollout or trainer."""
    return f"{service}-{pool}"


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

        Raises: NoMemory; StateMismatch when a canary disagrees; Fatal when the device broke. It then is where it was, or deeper.
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
