"""Slices of shared accelerators: orders, their outcomes, reports of executors, and the clocks of pools."""

from typing import Annotated

from pydantic import Field

from common.accelerators import ExecutorState, Function, Tier
from common.messages.base import Message, Sentence

Count = Annotated[int, Field(ge=0, lt=2**63)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class LeaseOrder(Message, kind="lease-order.1"):
    """Order to an executor, on `leases.order.<accelerator>.<executor>`. The newest replaces older ones; older epochs have no effect."""

    accelerator: str
    executor: str
    epoch: int = Field(ge=1)
    """Number of the slice to which the order belongs; it only increases on an accelerator."""
    wake: bool
    """True: compute, as soon as the accelerator is free. False: park."""
    function: Function | None = None
    """For a wake: the function to compute."""
    tier: Tier = Tier.DEVICE
    """For a park: the target tier."""
    drain_s: float | None = 0.0
    """For a park: seconds for running requests to end; None: unlimited."""


class LeaseDone(Message, kind="lease-done.1"):
    """Outcome of an order: an executor has woken, has parked, or failed to, on `leases.done.<accelerator>.<executor>`."""

    accelerator: str
    executor: str
    pool: str
    replica: str
    epoch: Count
    state: ExecutorState
    """`awake`, `parked`, `cold` (a new process without lock or lease) or `faulty`."""
    from_tier: Tier
    tier: Tier
    """Current tier of its state."""
    move_s: Seconds | None = None
    """Seconds of the move between the tiers, without waits for other executors; None if nothing was moved."""
    at_s: Seconds
    """NATS's time of completion."""
    device_bytes: Count = 0
    """Bytes needed on the device while awake."""
    host_bytes: Count = 0
    """Bytes needed in the tier `host`."""
    freed_bytes: int | None = None
    """Private memory of its processes before the move minus after it, in bytes; None if unknown."""
    served: dict[str, Count] = {}
    """For a park: sampled tokens, or milliseconds of steps, by task, since it woke."""
    busy_ms: Count = 0
    """For a park: milliseconds in which at least one operation was in progress."""
    score_ms: Count = 0
    """Part of `busy_ms` spent in the function `score`."""
    pieces: Count = 0
    """For a park: number of operations that ended."""
    failure: Sentence | None = None
    """Reason for a failure, or for parking itself; for `cold`: cause of the previous process's death, None if that was ordered to end."""
    lacks_memory: bool | None = None
    """For `faulty`: whether the device or the host lacked memory; None for other states."""


class ExecutorReport(Message, kind="executor-report.1"):
    """State of an executor, on `leases.now.<accelerator>.<executor>`: sent at each change, and every second."""

    accelerator: str
    executor: str
    pool: str
    replica: str
    epoch: Count
    """Epoch of the newest order that it has read; 0 before the first."""
    state: ExecutorState
    tier: Tier
    device_bytes: Count
    host_bytes: Count
    running: Function | None = None
    begun: Count = 0
    """Operations started and not ended, frozen ones included."""
    left_s: Seconds | None = None
    ready: Count = 0
    """Messages in its queues that no process has started."""
    ready_since_s: Seconds | None = None
    """NATS's time since when the oldest ready message has waited, or operations are frozen; None without either."""
    piece_s: Seconds | None = None
    """Measured accelerator seconds per operation; None before the first."""
    pieces: Count = 0
    """Operations that ended since it woke."""
    at_s: Seconds
    """NATS's time of the report."""
    budget_bytes: Count
    """Bytes that all executors of its accelerator may use together."""


class Lease(Message, kind="lease.1"):
    """Permission to compute on an accelerator, in the key-value bucket `leases` under the accelerator's name; expires unless renewed."""

    executor: str
    replica: str
    epoch: int
    renewed_s: float
    lock: str | None = None
    """`Locks.identity` of the compute.lock under which its holder computes; None if the kernel does not provide it."""


class PoolClock(Message, kind="pool-clock.1"):
    """Time for which a pool's sampler was parked, in the key-value bucket `pools` under the pool's name.

    The pool's clock is NATS's time minus this time; the clock stops while the sampler is parked.
    """

    parked_s: float = 0.0
    """Total seconds of completed parks."""
    parked_since_s: float | None = None
    """NATS's time at which the current park began; None while the sampler is awake."""

    def parked_until_s(self, now_s: float) -> float:
        """Total seconds parked until `now_s`, NATS's time."""
        return self.parked_s + (max(0.0, now_s - self.parked_since_s) if self.parked_since_s is not None else 0.0)
