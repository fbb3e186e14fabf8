"""Slices of shared accelerators: orders, what became of them, reports of executors, and the clocks of pools."""

from typing import Annotated

from pydantic import Field

from common.accelerators import ExecutorState, Function, Tier
from common.messages.base import Message, Sentence

Count = Annotated[int, Field(ge=0, lt=2**63)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class LeaseOrder(Message, kind="lease-order.1"):
    """What an executor must do, on `leases.order.<accelerator>.<executor>`. The newest replaces older ones; older epochs do nothing."""

    accelerator: str
    executor: str
    epoch: int = Field(ge=1)
    """Number of the slice that the order belongs to. It only grows on an accelerator."""
    wake: bool
    """True: compute, as soon as the accelerator is free. False: park."""
    function: Function | None = None
    """Of a wake: what it is for."""
    tier: Tier = Tier.DEVICE
    """Of a park: where to."""
    drain_s: float | None = 0.0
    """Of a park: seconds that running requests may take to end; None: until they have ended."""


class LeaseDone(Message, kind="lease-done.1"):
    """That an executor has woken, has parked, or could not, on `leases.done.<accelerator>.<executor>`."""

    accelerator: str
    executor: str
    pool: str
    replica: str
    epoch: Count
    state: ExecutorState
    """`awake`, `parked`, `cold` (a new process, which holds nothing) or `faulty`."""
    from_tier: Tier
    tier: Tier
    """Where its state is now."""
    move_s: Seconds | None = None
    """Seconds of the move between the tiers, waits for other executors not counted; None where nothing was moved."""
    at_s: Seconds
    """NATS's time at which it was done."""
    device_bytes: Count = 0
    """Bytes that it needs on the device while awake."""
    host_bytes: Count = 0
    """Bytes that it needs in the tier `host`."""
    freed_bytes: int | None = None
    """Private memory of its processes before the move less that after it; None where it is not known."""
    served: dict[str, Count] = {}
    """Of a park: sampled tokens, or milliseconds of steps, by task, since it woke."""
    busy_ms: Count = 0
    """Of a park: milliseconds in which an operation was in progress."""
    score_ms: Count = 0
    """Of `busy_ms`: those of the function `score`."""
    pieces: Count = 0
    """Of a park: operations that ended."""
    failure: Sentence | None = None
    """Why it could not, or parked itself; of `cold`: why the process before it died, None where that was ordered to end."""
    lacks_memory: bool | None = None
    """Of `faulty`: whether the device or the host had no memory for it; None of other states."""


class ExecutorReport(Message, kind="executor-report.1"):
    """An executor at one moment, on `leases.now.<accelerator>.<executor>`: at each change, and every second."""

    accelerator: str
    executor: str
    pool: str
    replica: str
    epoch: Count
    """Of the newest order that it has read; 0 before the first."""
    state: ExecutorState
    tier: Tier
    device_bytes: Count
    host_bytes: Count
    running: Function | None = None
    begun: Count = 0
    """Operations begun and not ended, frozen ones included."""
    left_s: Seconds | None = None
    ready: Count = 0
    """Messages in its queues that nobody has begun."""
    ready_since_s: Seconds | None = None
    """NATS's time since which the oldest ready work has waited, or operations are frozen; None without."""
    piece_s: Seconds | None = None
    """Measured seconds of the accelerator that one operation takes; None before the first."""
    pieces: Count = 0
    """Operations that ended since it woke."""
    at_s: Seconds
    """NATS's time of the report."""
    budget_bytes: Count
    """Bytes that all executors of its accelerator may use together."""


class Lease(Message, kind="lease.1"):
    """Who may compute on an accelerator, in the key-value bucket `leases` under the accelerator's name; expires where it is not renewed."""

    executor: str
    replica: str
    epoch: int
    renewed_s: float
    lock: str | None = None
    """The compute.lock under which its holder computes, as `Locks.identity`; None where the kernel does not say which it is."""


class PoolClock(Message, kind="pool-clock.1"):
    """Time for which a pool's sampler was parked, in the key-value bucket `pools` under the pool's name.

    The pool's clock shows the time less all that: it stands while the sampler is parked.
    """

    parked_s: float = 0.0
    """Sum of past times."""
    parked_since_s: float | None = None
    """NATS's time of the present one's begin; None while it is awake."""

    def parked_until_s(self, now_s: float) -> float:
        """Seconds parked in all. `now_s`: NATS's time."""
        return self.parked_s + (max(0.0, now_s - self.parked_since_s) if self.parked_since_s is not None else 0.0)
