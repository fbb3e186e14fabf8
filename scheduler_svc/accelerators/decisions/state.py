"""Executors of one accelerator and their ready work, the rules, and the decisions. Values only."""

from dataclasses import dataclass
from enum import StrEnum

from common.accelerators import Function, Policy, Tier


class Reason(StrEnum):
    """Why a switch was decided."""

    FIRST = "first"
    """The accelerator has no holder."""
    OVERDUE = "overdue"
    RATIO = "ratio"
    RESIDENT = "resident"
    """Its state is on the device, and what was moved there stays."""
    ORDER = "order"
    """In the order of arrival, or an operator's."""


@dataclass(frozen=True)
class Quantiles:
    """Median and 90th percentile of a duration, in seconds."""

    p50_s: float
    p90_s: float


@dataclass(frozen=True)
class Claim:
    """A tenant that may have work at an executor."""

    tenant: str
    weight: float
    virtual_s: float
    """Seconds of the accelerator booked to the tenant, divided by its weight, and what it was given as it came later than others."""
    pool_virtual_s: float
    """The same of the tenant's work in the executor's pool alone."""
    given_s: float = 0.0
    """What of `pool_virtual_s` was given."""


@dataclass(frozen=True)
class Demand:
    """One executor of the accelerator: its state, and its ready work if it has any."""

    executor: str
    pool: str
    function: Function
    """Function of its oldest ready work; without any, of its latest."""
    tier: Tier
    device_bytes: int
    """Bytes that it needs on the device."""
    host_bytes: int
    """Bytes that it needs in host memory in the tier `host`."""
    deepest: Tier
    """Deepest tier that its pool allows."""
    ready_since_s: float | None
    """When its oldest ready work became ready; None without ready work."""
    parked_since_s: float
    """End of its latest slice; minus infinity before the first."""
    work_s: float = 0.0
    """Expected seconds of all its ready and running work."""
    claims: tuple[Claim, ...] = ()
    is_ordered: bool = False
    """Whether an operator ordered that it is next, with or without work."""

    @property
    def waiting_since_s(self) -> float:
        """When its present wait began: its oldest work was ready, and its latest slice over. Infinite without ready work, and minus
        infinity where it is ordered."""
        if self.is_ordered:
            return float("-inf")
        return float("inf") if self.ready_since_s is None else max(self.ready_since_s, self.parked_since_s)


@dataclass(frozen=True)
class Holding:
    """The slice in progress."""

    executor: str
    awake_s: float
    """When its switch was done."""
    switch_s: float
    """Seconds that the switch to it took."""
    running: Function | None
    """Function of the operation in progress."""
    has_started: bool
    """Whether it has started an operation since it woke."""
    stay_since_s: float
    """When the latest switch was done that moved state to the device. Its pool's executors may have followed each other since."""
    stay_switch_s: float
    """Seconds that this switch took."""
    left: Quantiles | None = None
    """Time until what runs has ended; None when nothing runs."""


@dataclass(frozen=True)
class FreezeCosts:
    """What it costs to freeze what runs and to continue it later, in seconds."""

    switch_s: float
    """The switch to its executor."""
    again_s: float = 0.0
    """Work that is repeated: a KV cache that is dropped is computed again. 0 where the executor stays on the device."""

    @property
    def seconds(self) -> float:
        return self.switch_s + self.again_s


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes that all executors of an accelerator may use together."""

    device_bytes: int
    host_bytes: int


@dataclass(frozen=True)
class Rules:
    """An accelerator's settings. Defaults are those of the policy `ratio`."""

    budget: MemoryBudget
    policy: Policy = Policy.RATIO
    max_wait_s: float = 60.0
    """Seconds of waiting after which an executor goes before all that are not overdue."""
    residency: float = 4.0
    """Minimum time for which what was moved to the device stays there while it has work, as a multiple of the switch that moved it."""
    lead_s: float = 15.0
    """Maximum weighted seconds by which a tenant, or one of its pools, may be ahead of the least-served one and still be chosen."""
    hysteresis: float = 1.5
    """Factor by which another executor's ratio must exceed the holder's."""
    drain: float = 4.0
    """Maximum time that a sampler's requests may take to end while another executor is overdue, as a multiple of the cost of
    freezing them."""


@dataclass(frozen=True)
class Park:
    """An order to move an executor's state off the device, or only to pause it there."""

    executor: str
    from_tier: Tier
    to_tier: Tier


@dataclass(frozen=True)
class Keep:
    """The holder continues, and starts what is ready. The decision holds until `until_s` at the latest, or until work changes."""

    until_s: float


@dataclass(frozen=True)
class Idle:
    """Nobody computes. The decision holds until `until_s` at the latest, or until work changes."""

    until_s: float


@dataclass(frozen=True)
class Switch:
    """`executor` is next. `park_to`: moves of others before it wakes, the holder's among them."""

    executor: str
    function: Function
    park_to: tuple[Park, ...]
    reason: Reason
    expected_s: float
    """Expected seconds of the switch."""


@dataclass(frozen=True)
class Drain:
    """The holder starts nothing new; what still runs after `seconds` is frozen, unless it cannot be."""

    seconds: float


@dataclass(frozen=True)
class Freeze:
    """Running requests of a sampler are frozen immediately; they continue in its next slice."""
