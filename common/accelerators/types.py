"""Functions and states of executors, tiers of their state, and policies of an accelerator.

An *executor* is a service process that computes on an accelerator: a pool's sampler or trainer. Its *slice* is its uninterrupted time on
the accelerator, with an epoch that only grows.
"""

from enum import StrEnum


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
