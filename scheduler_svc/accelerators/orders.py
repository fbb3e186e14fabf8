"""Transactions of a decision, with their epochs: begin a slice with its orders, or end it. Each locks the accelerator first."""

from collections.abc import Collection
from dataclasses import dataclass

import structlog

from common import streams
from common.accelerators import Function, Tier
from common.bus import Bus
from common.errors import Reject
from common.messages import Lease, LeaseOrder
from scheduler_svc.accelerators import clocks
from scheduler_svc.accelerators.booking import Use, book_ended
from scheduler_svc.accelerators.deployed import Deployed, Key
from scheduler_svc.accelerators.queries import executors, slices, standing
from scheduler_svc.accelerators.queries.slices import NewSlice, OpenSlice
from scheduler_svc.accelerators.queries.standing import AcceleratorState
from scheduler_svc.base.states import SliceEnd, SliceReason
from scheduler_svc.base.transaction import OutboxMessage, Transaction

log = structlog.get_logger()


@dataclass(frozen=True)
class ParkOrder:
    """An executor that must park: the tier, and the seconds that running work may take to finish (None: no limit)."""

    executor: str
    tier: Tier
    drain_s: float | None = 0.0


@dataclass(frozen=True)
class Seen:
    """State of an accelerator on which a decision was based."""

    accelerator: str
    epoch: int
    open: int | None
    """Epoch of the open slice; None without one."""

    @classmethod
    def of(cls, standing: AcceleratorState) -> "Seen":
        return cls(standing.accelerator, standing.epoch, None if standing.slice is None else standing.slice.epoch)


@dataclass(frozen=True)
class Ordered:
    """A slice to order."""

    executor: str
    pool: str
    function: Function
    reason: SliceReason
    expected_s: float
    from_tier: Tier
    parks: Collection[ParkOrder]
    """Orders for other executors to park, including the holder."""


async def order_slice(tx: Transaction, seen: Seen, new: Ordered, *, now_ms: int, above: int) -> int | None:
    """End the open slice, begin the next, and post the orders; returns the new epoch, which is higher than `above`, the lease's epoch.

    If the accelerator's state differs from `seen`, changes nothing and returns None.
    """
    name = seen.accelerator
    epoch, present = await executors.locked_epoch(tx.connection, name), await slices.open_slice(tx.connection, name)
    if epoch is None or epoch != seen.epoch or (present.epoch if present is not None else None) != seen.open:
        return None
    epoch = max(epoch, above) + 1
    if present is not None:
        now_ms = await end_open(tx, name, present, SliceEnd.SWITCHED, now_ms, asked=True)
    now_ms = max(now_ms, await slices.latest_end_ms(tx.connection, name))
    tasks = await standing.tasks_with_work(tx.connection, new.pool, new.function)
    await slices.order(
        tx.connection,
        NewSlice(name, epoch, new.executor, new.pool, new.function, new.reason, tasks, new.expected_s, new.from_tier, now_ms),
    )
    await executors.raise_epoch(tx.connection, name, epoch)
    await executors.wake_ordered(tx.connection, name, new.executor)
    for park in new.parks:
        _post(tx, LeaseOrder(accelerator=name, executor=park.executor, epoch=epoch, wake=False, tier=park.tier, drain_s=park.drain_s))
    _post(tx, LeaseOrder(accelerator=name, executor=new.executor, epoch=epoch, wake=True, function=new.function))
    return epoch


async def end_without_next(tx: Transaction, seen: Seen, how: SliceEnd, park: ParkOrder, *, now_ms: int, above: int) -> bool:
    """End the open slice, and order its executor to park; False if the accelerator's state differs from `seen`."""
    name = seen.accelerator
    epoch, present = await executors.locked_epoch(tx.connection, name), await slices.open_slice(tx.connection, name)
    if present is None or epoch is None or epoch != seen.epoch or present.epoch != seen.open:
        return False
    await end_open(tx, name, present, how, now_ms, asked=True)
    await order_park(tx, name, park, above=max(epoch, above))
    if how in (SliceEnd.DIED, SliceEnd.REMOVED):  # no report of the work that it served will arrive
        await book_ended(tx, name, present.executor, present.pool, until=present.epoch, use=Use())
    return True


async def delete_removed(tx: Transaction, places: Collection[Key]) -> None:
    """Book the ended slices of executors that are not in `places`, and delete these executors: clients would wait for them.

    The executors have no open slice.
    """
    for accelerator, executor, pool in await executors.removed(tx.connection, places):
        epoch = await executors.locked_epoch(tx.connection, accelerator)
        await book_ended(tx, accelerator, executor, pool, until=epoch or 0, use=Use())
        await executors.delete(tx.connection, accelerator, executor)
        log.info("executor_removed", accelerator=accelerator, executor=executor)


async def order_park(tx: Transaction, accelerator: str, park: ParkOrder, *, above: int) -> None:
    """Order an executor of a locked accelerator to park, under a new epoch."""
    await executors.raise_epoch(tx.connection, accelerator, above + 1)
    order = LeaseOrder(accelerator=accelerator, executor=park.executor, epoch=above + 1, wake=False, tier=park.tier, drain_s=park.drain_s)
    _post(tx, order)


async def end_open(tx: Transaction, accelerator: str, present: OpenSlice, how: SliceEnd, now_ms: int, *, asked: bool) -> int:
    """End the open slice of a locked accelerator, and stop its pool's clock; returns the end in Unix ms. `asked`: as in `slices.end`."""
    ended_ms = max(now_ms, present.latest_ms)
    await slices.end(tx.connection, accelerator, present.epoch, how, ended_ms, asked=asked)
    await clocks.stop(tx, present.executor, present.pool, ended_ms)
    return ended_ms


def _post(tx: Transaction, order: LeaseOrder) -> None:
    subject = streams.lease_order(order.accelerator, order.executor)
    tx.post([OutboxMessage(subject, order, f"{subject}:{order.epoch}")])


async def known_epoch(bus: Bus, deployed: Deployed, accelerator: str) -> int:
    """Highest of the epochs of the lease and of the newest order to each executor."""
    epochs = [await lease_epoch(bus, accelerator)]
    for name, executor in deployed.places:
        if name == accelerator:
            last = await bus.streams.last(streams.LEASES, streams.lease_order(accelerator, executor))
            try:
                epochs.append(last.read(LeaseOrder).epoch if last is not None else 0)
            except Reject as error:
                log.warning("order_unreadable", executor=executor, reason=str(error))
    return max(epochs)


async def lease_epoch(bus: Bus, accelerator: str) -> int:
    """Epoch of the accelerator's lease; 0 without a lease."""
    try:
        lease = await bus.kv.get(streams.LEASES_BUCKET, accelerator, Lease)
    except Reject:
        return 0
    return lease.epoch if lease is not None else 0
