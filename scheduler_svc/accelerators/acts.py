"""The leader's action for each condition of an accelerator: a method, with its transaction, per entry of ACTS."""

import time
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

import structlog

from common.accelerators import Tier, off_device
from common.bus import Bus
from common.messages import ExecutorReport
from common.resilience import crashpoints
from scheduler_svc.accelerators.answers import died_waking, pause_s, wake_reported
from scheduler_svc.accelerators.booking import Use, book_ended
from scheduler_svc.accelerators.conditions import IGNORED_S, Condition
from scheduler_svc.accelerators.decisions.state import Switch
from scheduler_svc.accelerators.deployed import Deployed, Key
from scheduler_svc.accelerators.orders import Ordered, ParkOrder, Seen, end_without_next, lease_epoch, order_park, order_slice
from scheduler_svc.accelerators.queries import executors
from scheduler_svc.accelerators.queries.executors import Fault
from scheduler_svc.accelerators.queries.standing import ExecutorRow
from scheduler_svc.accelerators.reports import Reports, has_woken
from scheduler_svc.accelerators.snapshot import AcceleratorSnapshot, drain_s
from scheduler_svc.base.database import Database
from scheduler_svc.base.states import Hold, SliceEnd, SliceReason

LATE_S = 0.5
"""Delay in seconds from which NATS or this process counts as stalled: reports may still be in flight, so no executor counts as silent."""
IGNORED = f"it did not begin to wake within {IGNORED_S:g} s of its order"

log = structlog.get_logger()


class Acts:
    def __init__(self, bus: Bus, database: Database, deployed: Deployed, reports: Reports, changed: Callable[[], None]) -> None:
        """`changed`: called after rows and the outbox have changed."""
        self._bus = bus
        self._database = database
        self._deployed = deployed
        self._reports = reports
        self._changed = changed
        self._ordered: dict[Key, int] = {}
        """Executor that was ordered to park while it had no slice → the epoch that it reported at that time."""

    def ordered_epoch(self, row: ExecutorRow, report: ExecutorReport) -> int | None:
        """Epoch that the executor reported when it was ordered to park without a slice; None if no such order is pending.

        The order is done once the executor reports another epoch and no operator holds the executor.
        """
        key = (row.accelerator, row.executor)
        if not row.is_held and self._ordered.get(key) != report.epoch:
            self._ordered.pop(key, None)
        return self._ordered.get(key)

    async def record_gone(self, seen: AcceleratorSnapshot) -> None:
        """End the slice of a silent executor; if it has none, record that the executor has left the device and host memory."""
        row, asked_s = seen.gone, time.monotonic()
        assert row is not None
        await lease_epoch(self._bus, row.accelerator)
        now_s = self._bus.clock.now_s()
        if time.monotonic() - asked_s > LATE_S:
            self._reports.excuse(now_s)
            self._changed()
        elif not self._reports.is_gone((row.accelerator, row.executor), now_s):  # its reports came with NATS's answer
            self._changed()
        elif row is seen.standing.holder:
            await self.end(seen, SliceEnd.DIED)
        else:
            async with self._database.transaction() as tx:
                await executors.locked_epoch(tx.connection, row.accelerator)
                await executors.record_absence(tx.connection, row.accelerator, row.executor)
                await book_ended(tx, row.accelerator, row.executor, row.pool, until=seen.standing.epoch, use=Use())
            log.warning("executor_gone", accelerator=row.accelerator, executor=row.executor)
            self._changed()

    async def park_held(self, seen: AcceleratorSnapshot) -> None:
        for park in seen.held_on_device:
            await self._order_park(seen, park)

    async def park_strays(self, seen: AcceleratorSnapshot) -> None:
        for one in seen.strays:
            log.error("awake_without_slice", executor=one.row.executor, epoch=one.report.epoch)
            tier = off_device(self._deployed.deepest[one.row.pool])
            await self._order_park(seen, ParkOrder(one.row.executor, tier, drain_s(0.0, one.row.function)))

    async def record_wake(self, seen: AcceleratorSnapshot) -> None:
        one = seen.holder
        assert one is not None
        async with self._database.transaction() as tx:
            await wake_reported(tx, self._deployed, one.report, min(seen.unchanged_since_s, one.report.at_s), seen.now_s)
        self._changed()

    async def end_ignored(self, seen: AcceleratorSnapshot) -> None:
        one, newest = seen.holder, seen.standing.slice
        assert one is not None and newest is not None
        log.error("order_ignored", executor=one.row.executor, epoch=newest.epoch, state=str(one.report.state))
        await self.end(seen, SliceEnd.DIED, fault=None if has_woken(one.report, newest.epoch) else IGNORED)

    async def switch(self, seen: AcceleratorSnapshot) -> None:
        switch = seen.decision
        assert isinstance(switch, Switch)
        one = seen.executors[switch.executor]
        reason = SliceReason.OPERATOR if one.row.held is Hold.WAKE else SliceReason(switch.reason.value)
        parks = seen.parks(switch)
        new = Ordered(switch.executor, one.row.pool, switch.function, reason, switch.expected_s, one.report.tier, parks)
        above = await lease_epoch(self._bus, one.row.accelerator)
        crashpoints.reached("before_slice")
        async with self._database.transaction() as tx:
            epoch = await order_slice(tx, Seen.of(seen.standing), new, now_ms=self._now_ms(), above=above)
        crashpoints.reached("after_slice")
        if epoch is not None:
            log.info("slice_ordered", accelerator=one.row.accelerator, epoch=epoch, executor=new.executor, reason=str(reason))
        self._changed()

    async def end(self, seen: AcceleratorSnapshot, how: SliceEnd, *, fault: str | None = None) -> None:
        """End the open slice, and order no next one. `fault`: if given, why the executor gets no slice for a while."""
        holder = seen.standing.holder
        assert holder is not None
        deepest = self._deployed.deepest.get(holder.pool, Tier.HOST)
        tier = (holder.measured or deepest) if how is SliceEnd.HELD else Tier.DEVICE
        if how is SliceEnd.DIED:  # if the executor comes back, it has nothing on the device
            tier = off_device(deepest)
        # A drain, or a measured move to tier `none`, lets running work finish: tier `none` cannot hold frozen requests.
        has_to_end = holder.held is Hold.DRAIN or holder.measured is Tier.NONE
        park = ParkOrder(holder.executor, tier, None if has_to_end else drain_s(0.0, holder.function))
        above = await lease_epoch(self._bus, holder.accelerator)
        crashpoints.reached("before_slice_end")
        async with self._database.transaction() as tx:
            is_over = await end_without_next(tx, Seen.of(seen.standing), how, park, now_ms=self._now_ms(), above=above)
            if is_over and fault is not None:
                paused = Fault(fault, self._now_ms() + round(1000 * pause_s(holder.faults)), needs_room=False)
                await executors.record_fault(tx.connection, holder.accelerator, holder.executor, paused)
            elif is_over and how is SliceEnd.DIED:
                await executors.record_absence(tx.connection, holder.accelerator, holder.executor)
                if holder.executor in seen.silent and seen.is_waking:
                    await died_waking(tx, holder.accelerator, holder.executor, self._now_ms())
        crashpoints.reached("after_slice_end")
        if is_over:
            log.info("slice_ended", accelerator=holder.accelerator, executor=holder.executor, ended=str(how))
        self._changed()

    async def wait(self, seen: AcceleratorSnapshot) -> None:
        """Do nothing: the next report or changed row triggers a new decision."""

    async def _order_park(self, seen: AcceleratorSnapshot, park: ParkOrder) -> None:
        """Order an executor without a slice to park."""
        name = seen.standing.accelerator
        above = await lease_epoch(self._bus, name)
        async with self._database.transaction() as tx:
            epoch = await executors.locked_epoch(tx.connection, name)
            await order_park(tx, name, park, above=max(epoch or 0, above))
        self._ordered[name, park.executor] = seen.executors[park.executor].report.epoch
        self._changed()

    def _now_ms(self) -> int:
        return round(1000 * self._bus.clock.now_s())


ACTS: Mapping[Condition, Callable[[Acts, AcceleratorSnapshot], Awaitable[None]]] = MappingProxyType(
    {
        Condition.GONE: Acts.record_gone,
        Condition.HELD: Acts.park_held,
        Condition.MEASURING: Acts.wait,
        Condition.DUE: lambda acts, seen: acts.end(seen, SliceEnd.HELD),
        Condition.OBSTRUCTED: Acts.park_strays,
        Condition.WOKEN: Acts.record_wake,
        Condition.IGNORED: Acts.end_ignored,
        Condition.WAKING: Acts.wait,
        Condition.UNHEARD: Acts.wait,
        Condition.STOPPED: lambda acts, seen: acts.end(seen, SliceEnd.DIED),
        Condition.SWITCHING: Acts.switch,
        Condition.UNUSED: lambda acts, seen: acts.end(seen, SliceEnd.FINISHED),
        Condition.STEADY: Acts.wait,
    }
)
