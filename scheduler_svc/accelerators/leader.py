"""The leader: the one scheduler replica that decides about shared accelerators.

It decides when an executor's report or a row has changed, when the last decision expires, and every REFRESH_S; in between it waits. For
each accelerator it takes a snapshot (`snapshot.py`), determines the condition (`conditions.py`), and acts on it (`acts.py`). A new leader
starts from rows and the executors' next reports, so that any replica can take over.
A slice whose executor is silent for SILENT_S ends, and the next is ordered: the lease and locks that executors hold ensure that the
next executor wakes only when the device is free. Without NATS no decision is made, because no order could be sent.
"""

import asyncio
import time
from collections.abc import Callable

import structlog
from pydantic import JsonValue
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.accelerators import Tier
from common.bus import Bus
from common.bus.requests import Listening
from common.errors import Fatal, Retry
from common.periodic import run_forever
from common.resilience.event_loop import is_set_within
from scheduler_svc.accelerators import clocks
from scheduler_svc.accelerators.acts import ACTS, LATE_S, Acts
from scheduler_svc.accelerators.conditions import Condition, condition_of
from scheduler_svc.accelerators.decisions.state import Switch
from scheduler_svc.accelerators.decisions.tiers import NEWEST
from scheduler_svc.accelerators.deployed import Deployed
from scheduler_svc.accelerators.orders import ParkOrder, Seen, delete_removed, end_without_next, known_epoch
from scheduler_svc.accelerators.queries import executors, slices
from scheduler_svc.accelerators.queries.standing import AcceleratorState
from scheduler_svc.accelerators.reports import Reports
from scheduler_svc.accelerators.row_cache import RowCache
from scheduler_svc.accelerators.snapshot import AcceleratorSnapshot, ExecutorSnapshot, rules_of
from scheduler_svc.base.database import SLICES_LOCK, Database
from scheduler_svc.base.states import SliceEnd

LOOK_S = 0.02
"""Minimum seconds between two rounds of decisions."""
REFRESH_S = 1.0
"""Maximum seconds between two reads of rows, which other replicas change too. Reading also verifies that the lock is still held."""
FORGET_S = 600.0
"""Seconds between two deletions of outdated move measurements and old slices."""
SLICES_PER_TRANSACTION = 10_000
"""Maximum slices deleted in one transaction."""
RETRY_S = 1.0
NEVER_S = float("inf")

log = structlog.get_logger()


class Leader:
    def __init__(self, bus: Bus, database: Database, deployed: Deployed, slices_days: int, wake_relay: Callable[[], None]) -> None:
        """`slices_days`: days for which booked slices are kept; 0 keeps them forever."""
        self._bus = bus
        self._database = database
        self._deployed = deployed
        self._slices_days = slices_days
        self._wake_relay = wake_relay
        self._stirred = asyncio.Event()
        self._rows_changed = True
        self._clear()

    def _clear(self) -> None:
        """Reset all cached state: orders may not have been stored, and other replicas may have led meanwhile."""
        self._reports = Reports(self._deployed, self._bus.clock.now_s())
        self._rows = RowCache(self._deployed)
        self._acts = Acts(self._bus, self._database, self._deployed, self._reports, self._changed)

    def wake(self) -> None:
        """Trigger a decision after rows have changed."""
        self._rows_changed = True
        self._stirred.set()

    def _changed(self) -> None:
        self._wake_relay()
        self.wake()

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
            self._clear()
            await self._begin()
            async with asyncio.TaskGroup() as runners:
                runners.create_task(self._listen(listening))
                runners.create_task(self._decide_when_stirred(connection))
                runners.create_task(run_forever(self._forget_old, FORGET_S, "slices_not_led"))

    async def _listen(self, listening: Listening) -> None:
        while True:
            delivery = await listening.next(REFRESH_S)
            if delivery is not None and self._reports.take(delivery, self._bus.clock.now_s()):
                self._stirred.set()

    # ---------------------------------------------------------------------------------------------------------- begin

    async def _begin(self) -> None:
        """Register accelerators and executors of the pools file, delete other executors after ending their slices, and write all clocks."""
        specs: dict[str, dict[str, JsonValue]] = {name: one.model_dump(mode="json") for name, one in self._deployed.accelerators.items()}
        known = {name: await known_epoch(self._bus, self._deployed, name) for name in specs}
        now_ms = round(1000 * self._bus.clock.now_s())
        async with self._database.transaction() as tx:
            await executors.register(tx.connection, specs, list(self._deployed.places.values()))
            for accelerator, executor, epoch, open_ in await executors.open_slices(tx.connection):
                if (accelerator, executor) not in self._deployed.places:
                    above, seen = known.get(accelerator, 0), Seen(accelerator, epoch, open_)
                    park = ParkOrder(executor, Tier.NONE)
                    await end_without_next(tx, seen, SliceEnd.REMOVED, park, now_ms=now_ms, above=above)
            await delete_removed(tx, self._deployed.places)
            for name, epoch in known.items():
                if await executors.locked_epoch(tx.connection, name) is not None:
                    await executors.raise_epoch(tx.connection, name, epoch)
            await clocks.begin(tx, self._deployed.sampled, now_ms)
        self._wake_relay()

    # --------------------------------------------------------------------------------------------------------- decide

    async def _decide_when_stirred(self, connection: AsyncConnection) -> None:
        until_s, refreshed_s, looked_s = 0.0, 0.0, time.monotonic()
        while True:
            await self._wait(min(until_s, refreshed_s + REFRESH_S))
            self._stirred.clear()
            now_s = self._bus.clock.now_s()
            is_due = now_s >= refreshed_s + REFRESH_S
            if is_due or self._rows_changed or any(self._reports.contradict(one, now_s) for one in self._rows.standings.values()):
                self._rows_changed = False
                async with self._database.patience(), connection.begin():
                    await self._rows.read_rows(connection)
                    if is_due:
                        await self._rows.read_work(connection, now_s)
                        await executors.record_ready(connection, self._reports.ready_since_ms(now_s))
                        refreshed_s = now_s
            if not self._bus.is_connected or time.monotonic() - looked_s > REFRESH_S + LATE_S:  # stalled, perhaps while it read rows
                self._reports.excuse(self._bus.clock.now_s())
            looked_s = time.monotonic()
            until_s = NEVER_S
            if self._bus.is_connected:
                for standing in list(self._rows.standings.values()):
                    until_s = min(until_s, await self._decide(standing))
            await asyncio.sleep(LOOK_S)

    async def _wait(self, until_s: float) -> None:
        """Wait until a change, or until `until_s` in NATS time."""
        await is_set_within(self._stirred, max(0.0, until_s - self._bus.clock.now_s()))

    async def _decide(self, standing: AcceleratorState) -> float:
        """Act on one accelerator's condition; returns the NATS time of the next decision if nothing changes until then."""
        seen = self._snapshot(standing, self._bus.clock.now_s())
        condition = condition_of(seen)
        await ACTS[condition](self._acts, seen)
        return NEVER_S if condition is not Condition.STEADY or isinstance(seen.decision, Switch) else seen.decision.until_s

    def _snapshot(self, standing: AcceleratorState, now_s: float) -> AcceleratorSnapshot:
        name, holder = standing.accelerator, standing.holder
        live: dict[str, ExecutorSnapshot] = {}
        for row in standing.executors:
            key = (name, row.executor)
            report = self._reports.newest(key, now_s)
            if report is not None and key in self._deployed.places:
                claims = self._rows.claims(name, row.pool, trains=row.service == "trainer")
                since_s, ordered = self._reports.state_since_s(key), self._acts.ordered_epoch(row, report)
                is_kept_awake = key in self._deployed.kept_awake
                live[row.executor] = ExecutorSnapshot(
                    row, report, self._deployed.deepest[row.pool], claims, since_s, ordered, is_kept_awake
                )
        return AcceleratorSnapshot(
            now_s,
            standing,
            live,
            {row.executor for row in standing.executors if self._reports.is_gone((name, row.executor), now_s)},
            self._rows.moves[name],
            rules_of(self._deployed.accelerators[name], list(live.values())),
            holder is not None and ((name, holder.executor) in self._deployed.kept_awake or self._rows.has_running_tasks(holder.pool)),
        )

    async def _forget_old(self) -> None:
        """Delete outdated moves and old slices, in separate transactions, so that neither holds the other's row locks."""
        async with self._database.transaction() as tx:
            await executors.forget_moves(tx.connection, NEWEST)
        if self._slices_days:
            async with self._database.transaction() as tx:
                await slices.forget(tx.connection, self._slices_days, SLICES_PER_TRANSACTION)
