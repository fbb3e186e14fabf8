"""The scheduler's runners: consumers, admission after each change, the outbox relay, and periodic work."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.blobs import Blobs
from common.bus import Bus, batch_interval_s
from common.errors import MarlaasError, Retry
from common.periodic import log_failed, run_forever
from common.pools import Accelerators, Pools, named_replicas
from scheduler_svc.accelerators.answers import handle_lease_answers
from scheduler_svc.accelerators.deployed import Deployed
from scheduler_svc.accelerators.leader import Leader
from scheduler_svc.base import metrics, roles
from scheduler_svc.base.context import HandlerContext
from scheduler_svc.base.database import Database
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.settings import SchedulerSettings
from scheduler_svc.tenancy.billing import ledger, served
from scheduler_svc.tenancy.billing.served import handle_served
from scheduler_svc.tenancy.decisions.shares import Capacity
from scheduler_svc.tenancy.question import Sources
from scheduler_svc.tenancy.shares import work_in_flight
from scheduler_svc.tenancy.webhooks.sender import Post, WebhookSender
from scheduler_svc.training import admission, environment_checks
from scheduler_svc.training.budget_pauses import enforce_budgets
from scheduler_svc.training.decisions.pool_load import OversubscriptionController, PoolLoad, PoolTimes, capacities
from scheduler_svc.training.environment_checks import handle_environment_checks
from scheduler_svc.training.evaluations import end_overdue
from scheduler_svc.training.homes import Homes
from scheduler_svc.training.queries import deadlines, tasks
from scheduler_svc.training.results.dead_letters import handle_dead_letters
from scheduler_svc.training.results.scores import handle_scores, void_overdue
from scheduler_svc.training.results.weight_updates import handle_weight_updates
from scheduler_svc.upkeep import replicas
from scheduler_svc.upkeep.deletion import storage, sweeps
from scheduler_svc.upkeep.deletion.garbage_collector import GarbageCollector
from scheduler_svc.upkeep.deletion.retention import apply_retention
from scheduler_svc.upkeep.deletion.tenant_deletion import TenantDeletion
from scheduler_svc.upkeep.outbox import OutboxRelay
from scheduler_svc.upkeep.replicas import ReplicaRegistry, forget_lives, report_deaths
from scheduler_svc.upkeep.stalls import StabilityMonitor, resend_lost_steps, warn_about_stalls
from scheduler_svc.uploads.package_jobs import clean_packages, handle_package_checks
from scheduler_svc.uploads.packages import CHECKS_PER_TENANT, request_waiting_checks
from scheduler_svc.verbs.asks import Asks
from scheduler_svc.verbs.job_intake import JobIntake

LOST_STEPS_EVERY_S = 60.0
STORE_EVERY_TICKS = 5
"""Ticks between checks of the blob store's fill level."""
STALLS_EVERY_S = 30.0
LONG_SESSIONS_EVERY_S = 10.0
RETENTION_EVERY_S = 600.0
PACKAGES_EVERY_S = 300.0
OLD_KEYS_EVERY_S = 600.0
STORED_EVERY_S = 300.0
"""Seconds between recordings of stored bytes; only the first recording in an hour counts."""
SPACING_S = 0.03
"""Minimum seconds between transactions that settle scores, and between admissions: under load one transaction serves many messages."""
CHECKED_BATCH_SIZE = 4
"""Maximum tasks started in one transaction: if many are submitted together, the first start while others are still being checked."""
SETTLEMENT_BATCH_SIZE = 256
POSTPONED_S = 5.0
"""Seconds until a retry after an error that may recur, unlike an unavailable database."""

CONSUMERS = {
    streams.SCHEDULER_CHECKED: (handle_environment_checks, CHECKED_BATCH_SIZE, 0.0),
    streams.SCHEDULER_PACKAGES: (handle_package_checks, SETTLEMENT_BATCH_SIZE, 0.0),
    streams.SCHEDULER_SCORED: (handle_scores, SETTLEMENT_BATCH_SIZE, SPACING_S),
    streams.SCHEDULER_WEIGHTS: (handle_weight_updates, SETTLEMENT_BATCH_SIZE, 0.0),
    streams.SCHEDULER_SERVED: (handle_served, SETTLEMENT_BATCH_SIZE, SPACING_S),
    streams.SCHEDULER_LEASES: (handle_lease_answers, SETTLEMENT_BATCH_SIZE, 0.0),
    streams.SCHEDULER_FAILED: (handle_dead_letters, SETTLEMENT_BATCH_SIZE, 0.0),
}
"""Consumer → its handler, the maximum messages per batch, and the pause between batches in seconds.

Leases are consumed only if an accelerator is shared.
"""

log = structlog.get_logger()


class Scheduler:
    """One scheduler replica. Durable state is in PostgreSQL; memory has only live replicas and load."""

    def __init__(
        self, settings: SchedulerSettings, bus: Bus, database: Database, pools: Pools, accelerators: Accelerators | None = None
    ) -> None:
        self._settings = settings
        self._policy = settings.policy
        self._bus = bus
        self._database = database
        self._relay = OutboxRelay(database, bus)
        self._collector = GarbageCollector(database, bus, settings.sweep_s, self._relay.wake)
        self._admission_wanted = asyncio.Event()
        self._started = time.monotonic()
        self._replicas = ReplicaRegistry(bus, self._admission_wanted.set)
        self._oversubscription = OversubscriptionController(settings.oversubscription, settings.most_oversubscription)
        self._shares_samplers = any(pool.samplers_on for pool in pools.values())
        self._parked = frozenset[str]()
        """Pools that were parked at the last admission or tick."""
        sources = Sources.of(bus, database, pools, lambda: self._replicas.reports, self._capacities, lambda: self._replicas.troubles)
        self._tenant_deletion = TenantDeletion(database, bus, self._collector, self._relay.wake)
        self._asks = Asks(bus, sources)
        self._stability = StabilityMonitor(bus, lambda: frozenset(report.replica for report in self._replicas.reports))
        deployed = Deployed.of(accelerators or {}, pools)
        self._homes = Homes(
            database, named_replicas(pools), lambda: self._replicas.reports if self._replicas.were_read else None, bus.clock.now_s
        )
        self._leader = Leader(bus, database, deployed, settings.slices_days, self._relay.wake) if deployed.places else None
        self._context = context = HandlerContext(
            bus,
            database,
            pools,
            settings.policy,
            self._replicas,
            self._collector,
            self._relay.wake,
            self._admission_wanted.set,
            self._tenant_deletion.wake,
            settings.webhooks,
            deployed,
            self._leader.wake if self._leader is not None else lambda: None,
        )
        self._reported_deaths: set[tuple[str, str, float]] = set()
        self._webhooks = WebhookSender(database, Post(context.webhooks.policy), context.webhooks.sealing_key)
        self._intake = JobIntake(bus, context)

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as runners:
            runners.create_task(self._replicas.watch())
            runners.create_task(self._asks.run())
            runners.create_task(self._intake.run())
            runners.create_task(self._relay.run())
            runners.create_task(self._admit_when_wanted())
            runners.create_task(self._collector.run())
            runners.create_task(self._tenant_deletion.run())
            runners.create_task(self._webhooks.run())
            for pause_s, work in (
                (STORE_EVERY_TICKS * self._settings.tick_s, self._watch_store),
                (RETENTION_EVERY_S, self.apply_retention),
                (PACKAGES_EVERY_S, partial(clean_packages, self._database, self._bus, self._relay.wake)),
                (OLD_KEYS_EVERY_S, partial(sweeps.remove_ended_keys, self._database, self._bus)),
                (STORED_EVERY_S, self._record_stored),
            ):
                runners.create_task(run_forever(work, pause_s, "tick_postponed"))
            for pause_s, work in (
                (self._settings.tick_s, self._tick_or_reset),
                (LOST_STEPS_EVERY_S, self._rescue_steps),
                (STALLS_EVERY_S, self._find_stalls),
                (LONG_SESSIONS_EVERY_S, self._end_long_sessions),
            ):
                runners.create_task(run_forever(work, pause_s, "tick_postponed", pauses_first=True))
            if self._leader is not None:
                runners.create_task(self._leader.run())
            if (look_s := self._homes.look_s) is not None:
                runners.create_task(run_forever(self._homes.look, look_s, "homes_postponed"))
            for consumer, (handler, most, spacing_s) in CONSUMERS.items():
                if consumer is streams.SCHEDULER_LEASES and self._leader is None:
                    continue
                handle = partial(handler, self._context)
                runners.create_task(self._bus.consume_batches(consumer, handle, max_batch=most, spacing_s=spacing_s))

    async def _admit_when_wanted(self) -> None:
        not_before = 0.0
        while True:
            await self._admission_wanted.wait()
            await asyncio.sleep(max(0.0, not_before - time.monotonic()))
            began = time.monotonic()
            self._admission_wanted.clear()
            try:
                wants_more = True
                while wants_more:
                    async with self._database.transaction() as tx:
                        times = await self._pool_times(tx.connection)
                        messages, wants_more = await admission.admit(tx, self._capacities(), self._policy, times)
                    if messages:
                        self._relay.wake()
                not_before = began + batch_interval_s(SPACING_S, time.monotonic() - began)
            except Exception as error:
                log_failed("admission_postponed", error)
                await asyncio.sleep(0.2 if isinstance(error, Retry) else POSTPONED_S)
                self._admission_wanted.set()

    def _capacities(self) -> dict[str, Capacity]:
        """Capacity for work in flight, by pool with a live sampler."""
        decoded = {pool: samplers.times(1) for pool, samplers in self._replicas.samplers.items()}
        return capacities(decoded, self._oversubscription.factor, self._parked)

    async def _pool_times(self, connection: AsyncConnection) -> PoolTimes:
        """Current clocks of pools. Runs no query if no pool's sampler shares an accelerator."""
        if not self._shares_samplers:
            return PoolTimes(self._bus.clock.now_s())
        times = PoolTimes(self._bus.clock.now_s(), await deadlines.pool_clocks(connection))
        self._parked = times.parked
        return times

    async def _tick_or_reset(self) -> None:
        try:
            await self.tick()
        except Exception:
            self._stability.reset()
            raise

    async def _rescue_steps(self) -> None:
        if await resend_lost_steps(self._database, self._bus, self._homes.queues):
            self._relay.wake()

    async def _watch_store(self) -> None:
        await sweeps.make_room_for_statuses(self._database, self._bus)
        await forget_lives(self._bus, self._replicas.lives, self._replicas.alive, self._bus.clock.now_s())
        if await storage.update_alarm(self._database, await Blobs(self._bus).usage(), self._settings.store_alarm):
            self._relay.wake()

    async def _find_stalls(self) -> None:
        if await warn_about_stalls(self._database, self._replicas.reports, running_s=time.monotonic() - self._started):
            self._relay.wake()

    async def _end_long_sessions(self) -> None:
        async with self._database.transaction() as tx:
            for role in await roles.end_long_sessions(tx.connection):
                log.warning("session_ended", role=role)

    async def _record_stored(self) -> None:
        async with self._database.transaction() as tx:
            await ledger.record_stored_bytes(tx.connection)
        async with self._database.transaction() as tx:
            await served.forget_requests(tx.connection)

    async def apply_retention(self) -> None:
        """Announce and delete data whose retention days are over."""
        await apply_retention(self._database, self._bus, self._collector, self._relay.wake)

    async def tick(self) -> None:
        """Record live replicas, void overdue groups, and request the checks of waiting tasks and packages."""
        families = self._replicas.families
        async with self._context.transaction() as tx:
            times = await self._pool_times(tx.connection)
            withheld = {pool for pool, samplers in self._replicas.samplers.items() if samplers.withheld >= 1}
            stable_for_s, now_s = self._stability.stable_in(times, withheld), times.now_s
            await replicas.record_replicas(tx.connection, self._replicas.reports)
            overdue = {task for task, _ in await deadlines.overdue_groups(tx.connection, now_s)}
            late = await deadlines.overdue_evaluation_groups(tx.connection, now_s)
            waiting = await tasks.tasks_waiting_for_an_environment(tx.connection, most=CHECKS_PER_TENANT) if families else set[str]()
            await self._observe_samplers(tx.connection, times)

        async def end_late(tx: Transaction, task_id: str) -> None:
            by_id = {task.id: task for task in await tasks.lock_tasks(tx.connection, [task_id])}
            await end_overdue(tx, by_id, [key for key in late if key[0] == task_id], stable_for_s=stable_for_s)

        if await report_deaths(self._database, self._replicas.lives, self._bus.clock.now_s(), self._reported_deaths):
            self._relay.wake()
        async with self._context.transaction() as tx:
            await enforce_budgets(tx, self._policy)
        async with self._context.transaction() as tx:
            await request_waiting_checks(tx, families)
        await self._each(overdue, lambda tx, task: void_overdue(tx, task, self._policy, now_s, stable_for_s=stable_for_s))
        await self._each({task for task, _ in late}, end_late)
        await self._each(waiting, lambda tx, task: environment_checks.resolve_environment(tx, task, families))

    async def _observe_samplers(self, connection: AsyncConnection, times: PoolTimes) -> None:
        in_flight, spent = await work_in_flight(connection), await deadlines.time_spent(connection, times.now_s)
        for pool in times.clocks:
            metrics.PARKED_S.labels(pool).set(times.parked_s(pool))
        for pool, samplers in self._replicas.samplers.items():
            if pool in times.parked or not samplers.sequences:
                continue
            used = in_flight[pool].total.share_of(samplers.times(self._oversubscription.factor(pool))) if pool in in_flight else 0.0
            load = PoolLoad(samplers.awake, samplers.sampled, used, spent.get(pool, 0.0)) if samplers.awake else None
            self._oversubscription.observe(pool, load if samplers.withheld < 1 else None, times.of(pool))
            metrics.OVERSUBSCRIPTION.labels(pool).set(self._oversubscription.factor(pool))

    async def _each(self, found: Collection[str], change: Callable[[Transaction, str], Awaitable[None]]) -> None:
        """Change each task in its own transaction, so that an error in one does not affect the others."""
        for task in sorted(found):
            try:
                async with self._context.transaction() as tx:
                    await change(tx, task)
            except MarlaasError:
                raise
            except Exception:
                log.exception("task_not_changed", task=task)
