"""The leader: the one scheduler replica that decides about shared accelerators.

It asks `next_slice` when an executor's report or a row has changed, and when the last decision ends; in between it waits. It begins from
rows and the executors' next reports, so that another replica continues where it ended.

A slice whose executor is silent for SILENT_S ends, and the next is ordered: that this one wakes only when the device is free is up to lease
and locks, which the executors hold. Without NATS nothing is decided: no order could be sent.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog
from pydantic import JsonValue
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.accelerators import ExecutorState, Tier, off_device
from common.bus import Bus
from common.bus.requests import Listening
from common.errors import Fatal, Retry
from common.messages import ExecutorReport
from common.periodic import run_forever
from common.resilience import crashpoints
from scheduler_svc.accelerators import clocks
from scheduler_svc.accelerators.answers import died_waking, pause_s, wake_reported
from scheduler_svc.accelerators.booking import Use, book_ended
from scheduler_svc.accelerators.decisions.slicing import next_slice
from scheduler_svc.accelerators.decisions.state import Idle, Switch
from scheduler_svc.accelerators.demands import AcceleratorSnapshot, ExecutorSnapshot, drain_s, rules_of
from scheduler_svc.accelerators.deployed import Deployed
from scheduler_svc.accelerators.epochs import known_epoch, lease_epoch
from scheduler_svc.accelerators.holds import IGNORED_S, Holds, has_to_end, is_due, is_measuring
from scheduler_svc.accelerators.orders import Ordered, ParkOrder, Seen, delete_removed, end_without_next, order_park, order_slice
from scheduler_svc.accelerators.orphans import Strays
from scheduler_svc.accelerators.queries import executors
from scheduler_svc.accelerators.queries.executors import Fault
from scheduler_svc.accelerators.queries.standing import AcceleratorState, ExecutorRow
from scheduler_svc.accelerators.reports import AT_REST, Reports, has_ended, has_stopped, has_woken
from scheduler_svc.accelerators.retention import forget_old
from scheduler_svc.accelerators.row_cache import RowCache
from scheduler_svc.base.database import SLICES_LOCK, Database
from scheduler_svc.base.states import Hold, SliceEnd, SliceReason

LOOK_S = 0.02
"""Minimum time between two looks."""
REFRESH_S = 1.0
"""Maximum time between two readings of rows: other replicas change them too. It also shows that the lock is still held."""
LATE_S = 0.5
"""Delay of this process beyond which it may not have read reports that had come."""
FORGET_S = 600.0
"""Time between two deletions of moves that count no more, and of old slices."""
STOPPED_S = 5.0
"""Time for which the holder says that it is awake, or no more, without the answer that says so, until its reports count."""
IGNORED = f"it did not begin to wake within {IGNORED_S:g} s of its order"
RETRY_S = 1.0
NEVER_S = float("inf")

log = structlog.get_logger()


class Leader:
    def __init__(self, bus: Bus, database: Database, deployed: Deployed, slices_days: int, wake_relay: Callable[[], None]) -> None:
        """`slices_days`: how long booked slices are kept; 0 for ever."""
        self._bus = bus
        self._database = database
        self._deployed = deployed
        self._slices_days = slices_days
        self._wake_relay = wake_relay
        self._stirred = asyncio.Event()
        self._rows_changed = True
        self._reports = Reports(deployed, bus.clock.now_s())
        self._knowledge = RowCache(deployed)
        self._holds = Holds()
        self._strays = Strays(deployed.deepest)

    def wake(self) -> None:
        """Rows have changed."""
        self._rows_changed = True
        self._stirred.set()

    async def run(self) -> None:
        """Lead while this replica holds the lock, until cancelled."""
        while True:
            try:
                await self._lead_alone()
            except* Fatal:
                raise
            except* (Retry, OSError) as errors:
                log.warning("slices_not_led", error=str(errors.exceptions[0]))
            except* Exception:
                log.exception("slices_not_led")
            await asyncio.sleep(RETRY_S)

    async def _lead_alone(self) -> None:
        async with self._database.alone(SLICES_LOCK) as connection:
            log.info("slices_led", accelerators=sorted(self._deployed.accelerators))
            await self._lead(connection)

    async def _lead(self, connection: AsyncConnection) -> None:
        async with self._bus.requests.listening(streams.executor_now("*", "*")) as listening:
            self._reports = Reports(self._deployed, self._bus.clock.now_s())
            self._knowledge = RowCache(self._deployed)
            self._holds, self._strays = Holds(), Strays(self._deployed.deepest)  # what they ordered may not have been stored
            await self._begin()
            async with asyncio.TaskGroup() as runners:
                runners.create_task(self._listen(listening))
                runners.create_task(self._decide_when_stirred(connection))
                runners.create_task(run_forever(self._forget, FORGET_S, "slices_not_led"))

    async def _listen(self, listening: Listening) -> None:
        while True:
            delivery = await listening.next(REFRESH_S)
            if delivery is not None and self._reports.take(delivery, self._bus.clock.now_s()):
                self._stirred.set()

    # ---------------------------------------------------------------------------------------------------------- begin

    async def _begin(self) -> None:
        """Write what the pools file has; end slices of executors that it has no more, and delete those; write all clocks."""
        specs: dict[str, dict[str, JsonValue]] = {name: one.model_dump(mode="json") for name, one in self._deployed.accelerators.items()}
        known = {name: await known_epoch(self._bus, self._deployed, name) for name in specs}
        async with self._database.transaction() as tx:
            await executors.register(tx.connection, specs, list(self._deployed.places.values()))
            for accelerator, executor, epoch, open_ in await executors.open_slices(tx.connection):
                if (accelerator, executor) not in self._deployed.places:
                    above, seen = known.get(accelerator, 0), Seen(accelerator, epoch, open_)
                    park = ParkOrder(executor, Tier.NONE)
                    await end_without_next(tx, seen, SliceEnd.REMOVED, park, now_ms=self._now_ms(), above=above)
            await delete_removed(tx, self._deployed.places)
            for name, epoch in known.items():
                if await executors.locked_epoch(tx.connection, name) is not None:
                    await executors.raise_epoch(tx.connection, name, epoch)
            await clocks.begin(tx, self._deployed.sampled, self._now_ms())
        self._wake_relay()

    # --------------------------------------------------------------------------------------------------------- decide

    async def _decide_when_stirred(self, connection: AsyncConnection) -> None:
        until_s, refreshed_s, looked_s = 0.0, 0.0, time.monotonic()
        while True:
            await self._wait(min(until_s, refreshed_s + REFRESH_S))
            self._stirred.clear()
            now_s = self._bus.clock.now_s()
            if not self._bus.is_connected or time.monotonic() - looked_s > REFRESH_S + LATE_S:
                self._reports.excuse(now_s)
            looked_s = time.monotonic()
            is_due = now_s >= refreshed_s + REFRESH_S
            if is_due or self._rows_changed or any(self._differs(one, now_s) for one in self._knowledge.standings.values()):
                self._rows_changed = False
                async with self._database.patience(), connection.begin():
                    await self._knowledge.read_rows(connection)
                    if is_due:
                        await self._knowledge.read_work(connection, now_s)
                        await executors.record_ready(connection, self._reports.ready_since_ms(now_s))
                        refreshed_s = now_s
            until_s = NEVER_S
            if self._bus.is_connected:
                for standing in list(self._knowledge.standings.values()):
                    until_s = min(until_s, await self._decide(standing))
            await asyncio.sleep(LOOK_S)

    async def _wait(self, until_s: float) -> None:
        """Until a change, or that time of NATS."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until_s - self._bus.clock.now_s())):
                await self._stirred.wait()

    def _differs(self, standing: AcceleratorState, now_s: float) -> bool:
        """Whether reports say what no row says yet."""
        for row in standing.executors:
            report, newest = self._reports.newest((row.accelerator, row.executor), now_s), row.newest
            if report is None or newest is None or newest.ended_ms is not None:
                continue
            woke = has_woken(report, newest.epoch) and newest.awake_ms is None
            if woke or has_ended(report, newest.epoch):
                return True
        return False

    async def _decide(self, standing: AcceleratorState) -> float:
        """Do what is to be done now on one accelerator; returns until when nothing else is, as far as nothing changes."""
        now_s = self._bus.clock.now_s()
        for row in standing.executors:
            if self._reports.is_gone((row.accelerator, row.executor), now_s) and await self._record_gone(standing, row):
                return now_s
        picture = self._picture(standing, now_s)
        if parks := self._holds.parks(picture):
            await self._order_parks(standing, parks)
            return now_s
        if is_measuring(picture):
            return now_s + REFRESH_S
        holder = standing.holder
        if holder is not None and holder.newest is not None:
            if is_due(holder):
                return await self._end(standing, holder, SliceEnd.HELD)
            if holder.newest.awake_ms is None:
                return await self._watch_switch(standing, holder, now_s)
            if holder.executor not in picture.executors:  # a new leader has not heard it yet; it would not be ordered to park
                return now_s + REFRESH_S
            if self._has_stopped(picture.executors[holder.executor].report, holder.newest.awake_ms / 1000, now_s):
                return await self._end(standing, holder, SliceEnd.DIED)
        decision = next_slice(now_s, picture.held, picture.demands, picture.moves, picture.rules)
        if isinstance(decision, Switch):
            return await self._order(standing, picture, decision)
        if isinstance(decision, Idle) and holder is not None and not self._knowledge.has_running_tasks(holder.pool):
            return await self._end(standing, holder, SliceEnd.FINISHED)
        retries = [row.retry_ms / 1000 for row in standing.executors if row.retry_ms is not None and row.retry_ms > 1000 * now_s]
        return min([decision.until_s, *retries])

    def _picture(self, standing: AcceleratorState, now_s: float) -> AcceleratorSnapshot:
        name = standing.accelerator
        live: dict[str, ExecutorSnapshot] = {}
        for row in standing.executors:
            key = (row.accelerator, row.executor)
            report = self._reports.newest(key, now_s)
            if report is None or key not in self._deployed.places:
                continue
            claims, deepest = self._knowledge.claims(name, row.pool, trains=row.service == "trainer"), self._deployed.deepest[row.pool]
            live[row.executor] = ExecutorSnapshot(row, report, deepest, claims)
        rules = rules_of(self._deployed.accelerators[name], list(live.values()))
        return AcceleratorSnapshot(now_s, standing, live, self._knowledge.moves[name], rules)

    async def _record_gone(self, standing: AcceleratorState, row: ExecutorRow) -> bool:
        """Whether anything was left to do about an executor that does not report."""
        if row is not standing.holder and row.tier is Tier.OFF and not row.has_unbooked:
            return False
        asked_s = time.monotonic()
        await lease_epoch(self._bus, standing.accelerator)
        if time.monotonic() - asked_s > LATE_S:  # NATS was silent, and not the executor: its reports are on their way
            self._reports.excuse(self._bus.clock.now_s())
            return True
        if row is standing.holder:
            await self._end(standing, row, SliceEnd.DIED)
            return True
        async with self._database.transaction() as tx:
            await executors.locked_epoch(tx.connection, standing.accelerator)
            await executors.record_absence(tx.connection, row.accelerator, row.executor)
            await book_ended(tx, row.accelerator, row.executor, row.pool, until=standing.epoch, use=Use())
        log.warning("executor_gone", accelerator=row.accelerator, executor=row.executor)
        self.wake()
        return True

    async def _order_parks(self, standing: AcceleratorState, parks: Sequence[ParkOrder]) -> None:
        """Order executors that have no slice."""
        for park in parks:
            above = await lease_epoch(self._bus, standing.accelerator)
            async with self._database.transaction() as tx:
                epoch = await executors.locked_epoch(tx.connection, standing.accelerator)
                await order_park(tx, standing.accelerator, park, above=max(epoch or 0, above))
            self._wake_relay()
            self.wake()

    async def _forget(self) -> None:
        await forget_old(self._database, self._slices_days)

    def _has_stopped(self, report: ExecutorReport, awake_s: float, now_s: float) -> bool:
        """Whether the holder computes no more and no answer says so: it was lost, or NATS was emptied and a new process knows no epoch."""
        since_s = self._reports.state_since_s((report.accelerator, report.executor))
        return has_stopped(report, awake_s) and now_s > max(since_s, awake_s) + STOPPED_S

    async def _watch_switch(self, standing: AcceleratorState, holder: ExecutorRow, now_s: float) -> float:
        """Who does not begin to wake loses its slice; whose answer was lost, and reports it, has woken. A watchdog limits moves."""
        assert holder.newest is not None
        key, epoch = (holder.accelerator, holder.executor), holder.newest.epoch
        report = self._reports.newest(key, now_s)
        state_s = max(holder.newest.ordered_ms / 1000, self._reports.state_since_s(key))
        await self._order_parks(standing, self._strays.parks(standing, self._reports, now_s))
        if report is not None and has_woken(report, epoch) and report.epoch == epoch:
            if now_s < state_s + STOPPED_S:
                return state_s + STOPPED_S
            async with self._database.transaction() as tx:
                await wake_reported(tx, self._deployed, report, min(state_s, report.at_s), now_s)
            self._wake_relay()
            self.wake()
            return now_s
        if report is None or now_s < state_s + IGNORED_S:
            return max(state_s + IGNORED_S, now_s + REFRESH_S)
        if report.state is ExecutorState.AWAKE or report.state in AT_REST:
            log.error("order_ignored", executor=holder.executor, epoch=epoch, state=str(report.state))
            return await self._end(standing, holder, SliceEnd.DIED, fault=None if has_woken(report, epoch) else IGNORED)
        return NEVER_S

    # --------------------------------------------------------------------------------------------------------- change

    async def _order(self, standing: AcceleratorState, picture: AcceleratorSnapshot, switch: Switch) -> float:
        one = picture.executors[switch.executor]
        reason = SliceReason.OPERATOR if one.row.held is Hold.WAKE else SliceReason(switch.reason.value)
        parks = picture.parks(switch)
        new = Ordered(switch.executor, one.row.pool, switch.function, reason, switch.expected_s, one.report.tier, parks)
        above = await lease_epoch(self._bus, standing.accelerator)
        crashpoints.reached("before_slice")
        async with self._database.transaction() as tx:
            epoch = await order_slice(tx, _seen(standing), new, now_ms=self._now_ms(), above=above)
        crashpoints.reached("after_slice")
        if epoch is not None:
            log.info("slice_ordered", accelerator=standing.accelerator, epoch=epoch, executor=new.executor, reason=str(reason))
            self._wake_relay()
        self.wake()
        return picture.now_s

    async def _end(self, standing: AcceleratorState, holder: ExecutorRow, how: SliceEnd, *, fault: str | None = None) -> float:
        """End the open slice without a next one. `fault`: why its executor is given none for a while."""
        tier = (holder.measured or self._deployed.deepest.get(holder.pool, Tier.HOST)) if how is SliceEnd.HELD else Tier.DEVICE
        if how is SliceEnd.DIED:  # should it come back, it has nothing on the device
            tier = off_device(self._deployed.deepest.get(holder.pool, Tier.HOST))
        park = ParkOrder(holder.executor, tier, None if has_to_end(holder) else drain_s(0.0, holder.function))
        above = await lease_epoch(self._bus, standing.accelerator)
        crashpoints.reached("before_slice_end")
        async with self._database.transaction() as tx:
            is_over = await end_without_next(tx, _seen(standing), how, park, now_ms=self._now_ms(), above=above)
            if is_over and fault is not None:
                paused = Fault(fault, self._now_ms() + round(1000 * pause_s(holder.faults)), needs_room=False)
                await executors.record_fault(tx.connection, holder.accelerator, holder.executor, paused)
            elif is_over and how is SliceEnd.DIED:
                await executors.record_absence(tx.connection, holder.accelerator, holder.executor)
                is_gone = self._reports.is_gone((holder.accelerator, holder.executor), self._bus.clock.now_s())
                if is_gone and holder.newest is not None and holder.newest.awake_ms is None:
                    await died_waking(tx, holder.accelerator, holder.executor, self._now_ms())
        crashpoints.reached("after_slice_end")
        if is_over:
            log.info("slice_ended", accelerator=standing.accelerator, executor=holder.executor, ended=str(how))
        self._wake_relay()
        self.wake()
        return self._bus.clock.now_s()

    def _now_ms(self) -> int:
        return round(1000 * self._bus.clock.now_s())


def _seen(standing: AcceleratorState) -> Seen:
    return Seen(standing.accelerator, standing.epoch, standing.open)
