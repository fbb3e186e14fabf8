"""Executors of one accelerator, their ready work, the rules, and the decisions. Values only."""

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
    """The executor's state is on the device, and the residency of the state there has not passed."""
    ORDER = "order"
    """Order of arrival, or an operator's order."""


@dataclass(frozen=True)
class Quantiles:
    """Median and 90th percentile of a duration, in seconds."""

    p50_s: float
    p90_s: float


@dataclass(frozen=True)
class Claim:
    """A tenant's entitlement to an executor's time."""

    tenant: str
    weight: float
    virtual_s: float
    """Accelerator seconds booked to the tenant, divided by its weight, plus its newcomer's credit."""
    pool_virtual_s: float
    """As `virtual_s`, for the tenant's work in the executor's pool alone."""
    given_s: float = 0.0
    """Newcomer's credit included in `pool_virtual_s`."""


@dataclass(frozen=True)
class Demand:
    """One executor of the accelerator: its state, and its ready work if it has any."""

    executor: str
    pool: str
    function: Function
    """Function of the executor's oldest ready work; if no work is ready, of its latest work."""
    tier: Tier
    device_bytes: int
    """Bytes that the executor needs on the device."""
    host_bytes: int
    """Bytes that the executor needs in host memory in the tier `host`."""
    deepest: Tier
    """Deepest tier that the executor's pool allows."""
    ready_since_s: float | None
    """Time at which its oldest ready work became ready; None without ready work."""
    parked_since_s: float
    """End of the executor's latest slice; minus infinity before the first."""
    work_s: float = 0.0
    """Expected seconds of all its ready and running work."""
    claims: tuple[Claim, ...] = ()
    is_ordered: bool = False
    """Whether an operator ordered the executor to wake, with or without work."""

    @property
    def waiting_since_s(self) -> float:
        """Start of the executor's present wait: when its oldest work became ready or its latest slice ended, whichever is later.

        Infinite without ready work; minus infinity if an operator ordered the executor to wake.
        """
        if self.is_ordered:
            return float("-inf")
        return float("inf") if self.ready_since_s is None else max(self.ready_since_s, self.parked_since_s)


@dataclass(frozen=True)
class Holding:
    """The slice in progress."""

    executor: str
    awake_s: float
    """Time at which the executor woke."""
    switch_s: float
    """Seconds that the switch to the executor took."""
    running: Function | None
    """Function of the operation in progress; None if none is."""
    has_started: bool
    """Whether the executor has started an operation since it woke."""
    stay_since_s: float
    """End of the latest switch that moved state to the device; later switches between executors on the device do not count."""
    stay_switch_s: float
    """Seconds that the switch of `stay_since_s` took."""
    left: Quantiles | None = None
    """Time until the running work ends; None if nothing runs."""


@dataclass(frozen=True)
class FreezeCosts:
    """Cost of freezing the running work and continuing it later, in seconds."""

    switch_s: float
    """Seconds to switch back to its executor."""
    again_s: float = 0.0
    """Seconds of repeated work: a dropped KV cache is recomputed. 0 if the executor stays on the device."""

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
    """An accelerator's settings; the defaults are for the policy `ratio`."""

    budget: MemoryBudget
    policy: Policy = Policy.RATIO
    max_wait_s: float = 60.0
    """Seconds of waiting after which an executor is overdue and takes precedence."""
    residency: float = 4.0
    """Minimum time for which state moved to the device stays there while it has work, as a multiple of the switch's duration."""
    lead_s: float = 15.0
    """Maximum weighted seconds by which a tenant, or one of its pools, may be ahead of the least-served one and still be chosen."""
    hysteresis: float = 1.5
    """Factor by which another executor's ratio must exceed the holder's."""
    drain: float = 4.0
    """Maximum time for running requests to finish while another executor is overdue, as a multiple of the cost of freezing them."""


@dataclass(frozen=True)
class Park:
    """An order to move an executor's state off the device, or, if `to_tier` is the device, to pause the executor there."""

    executor: str
    from_tier: Tier
    to_tier: Tier


@dataclass(frozen=True)
class Keep:
    """The holder continues, and starts ready work. Valid until `until_s`, or until work changes."""

    until_s: float


@dataclass(frozen=True)
class Idle:
    """No executor computes. Valid until `until_s`, or until work changes."""

    until_s: float


@dataclass(frozen=True)
class Switch:
    """`executor` is next. `park_to`: moves of others, including the holder, before it wakes."""

    executor: str
    function: Function
    park_to: tuple[Park, ...]
    reason: Reason
    expected_s: float
    """Expected seconds of the switch."""


@dataclass(frozen=True)
class Drain:
    """The holder starts no new work; running work is frozen after `seconds` if it can be."""

    seconds: float


@dataclass(frozen=True)
class Freeze:
    """A sampler's running requests are frozen immediately; they continue in its next slice."""
