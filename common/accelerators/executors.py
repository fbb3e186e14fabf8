"""Executors: their functions and states, tiers of their state, the `Parkable` interface, and policies of an accelerator.

An *executor* is a service process that computes on an accelerator: a pool's sampler or trainer. Its *slice* is its uninterrupted time on
the accelerator; each slice has an epoch, which only increases.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from common.errors import MarlaasError


class Function(StrEnum):
    """Kind of computation."""

    GENERATE = "generate"
    TRAIN = "train"
    SCORE = "score"
    """Forward passes without a gradient: log-probabilities of the base model or the proximal policy, canary checks of new adapters."""

    @property
    def is_interruptible(self) -> bool:
        """Whether an operation can be frozen and continued later: true for sampler requests, false for training steps and scoring
        passes."""
        return self is Function.GENERATE


class Tier(StrEnum):
    """Location of an executor's state, from the nearest to the deepest."""

    DEVICE = "device"
    """Device memory; the state is paused unless its executor holds the accelerator."""
    HOST = "host"
    """Host memory; a sampler's KV cache is dropped."""
    DISK = "disk"
    """Dropped; reloaded from the model's folder and checkpoints."""
    NONE = "none"
    """Engine closed, process alive."""
    OFF = "off"
    """No process."""

    @property
    def depth(self) -> int:
        return DEPTHS[self]


def off_device(deepest: Tier) -> Tier:
    """Tier for an executor that must leave the device immediately: host memory, or a shallower tier if `deepest` is shallower."""
    return min(Tier.HOST, deepest, key=lambda tier: tier.depth)


DEPTHS = {tier: depth for depth, tier in enumerate(Tier)}


class ExecutorState(StrEnum):
    """State of an executor.

    cold ──▶ waking ──▶ awake ──▶ parking ──▶ parked ──▶ waking      any of them ──▶ faulty ──▶ waking (after its back-off)
    """

    COLD = "cold"
    """Started; no state on the device yet."""
    WAKING = "waking"
    AWAKE = "awake"
    PARKING = "parking"
    PARKED = "parked"
    FAULTY = "faulty"
    """Failed to wake, or failed its check after waking; it computes nothing."""


class Policy(StrEnum):
    """Rule that chooses an accelerator's next slice."""

    RATIO = "ratio"
    """Highest response ratio, including the cost of the switch."""
    FCFS = "fcfs"
    """First come, first served: the baseline for `ratio`."""


def executor_name(service: str, pool: str) -> str:
    """Name of an executor, unique on its accelerator. `service`: rollout or trainer."""
    return f"{service}-{pool}"


class NoMemory(MarlaasError):
    """The device or the host has too little memory for the state to be moved. The state stays in its tier, or is in a deeper one."""


class StateMismatch(MarlaasError):
    """An executor's numbers after waking differ from those before parking. It has computed nothing for any task since it woke."""


@dataclass(frozen=True)
class WorkDone:
    """Work that an executor did since the previous call of `taken`."""

    by_task: Mapping[str, int] = field(default_factory=dict[str, int])
    """Sampled tokens, or milliseconds of steps, by task."""
    busy_s: float = 0.0
    """Seconds in which at least one operation was in progress."""
    pieces: int = 0
    """Operations that ended: messages answered, or steps completed."""
    score_s: float = 0.0
    """Part of `busy_s` spent in forward passes without a gradient: they belong to a step, but count as the function `score`."""


@dataclass(frozen=True)
class Load:
    """Work of an executor at one moment."""

    running: Function | None = None
    """Function of the operation in progress; None if nothing runs."""
    begun: int = 0
    """Operations started and not ended, frozen ones included."""
    left_s: float | None = None
    """Expected seconds until the begun operations have ended; None if there are none, or no estimate."""
    messages: int | None = None
    """Number of messages to which the begun operations belong; None: every message that the process holds."""
    preparing: int = 0
    """Operations not started yet, whose data is being read or restored. Parking waits for them too: they cannot be interrupted, and one
    may start at any moment."""


class Parkable(Protocol):
    """A sampler or trainer whose state moves between tiers. One wake or park at a time; both may take seconds."""

    @property
    def tier(self) -> Tier:
        """Current tier of its state."""
        ...

    @property
    def device_bytes(self) -> int:
        """Bytes needed on the device while awake; known before its first wake, at least as an estimate."""
        ...

    @property
    def host_bytes(self) -> int:
        """Bytes needed in host memory in the tier `host`."""
        ...

    @property
    def load(self) -> Load: ...

    async def wake(self) -> None:
        """Move the state to the device and check it; then continue frozen operations and accept messages.

        Raises: NoMemory; StateMismatch if a canary disagrees; Fatal if the device failed. The state then is in its previous tier, or
        deeper.
        """
        ...

    async def park(self, tier: Tier, drain_s: float | None) -> float:
        """Move the state to `tier`, or to its deepest supported tier; returns the seconds of the move, without the wait for operations.

        Accepts no more messages. Operations in progress get `drain_s` seconds to finish (None: unlimited). Those left are then frozen, or
        waited for if they cannot be frozen. Messages not started are handed back, or kept and counted (`Load.messages`).
        """
        ...

    def end_drain(self) -> None:
        """Make a `park` in progress freeze its operations immediately, if they can be frozen. Does nothing at any other time."""
        ...

    def taken(self) -> WorkDone:
        """Work done since the previous call."""
        ...
