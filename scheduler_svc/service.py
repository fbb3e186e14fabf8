"""The scheduler at work: consumers settle, admission follows every change, the relay publishes, the tick looks at clocks."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from common import crashpoints, streams
from common.blobs import Blobs
from common.bus import Bus, Delivery, spaced
from common.cancellation import notice_cancellation
from common.errors import MarlaasError, Retry
from common.messages import EnvironmentChecked, WeightUpdated
from common.periodic import run_periodically
from common.pools import Pools
from scheduler_svc import metrics
from scheduler_svc.decisions.oversubscription import OversubscriptionController, PoolLoad
from scheduler_svc.dispatch import admission
from scheduler_svc.handlers import dead_letters, environment_checks, jobs, scores, weight_updates
from scheduler_svc.handlers.deletion import Deletions, is_deletion
from scheduler_svc.handlers.jobs import Offer
from scheduler_svc.lifecycle import environment_resolution
from scheduler_svc.lifecycle.evaluations import end_overdue
from scheduler_svc.maintenance import store_alarm
from scheduler_svc.maintenance.garbage_collector import GarbageCollector, postponed
from scheduler_svc.maintenance.outbox_relay import Relay
from scheduler_svc.maintenance.replica_registry import Replicas
from scheduler_svc.maintenance.stability import StabilityMonitor
from scheduler_svc.maintenance.stalls import warn_about_stalls
from scheduler_svc.maintenance.step_rescuer import send_lost_steps_again
from scheduler_svc.settings import SchedulerSettings
from scheduler_svc.store.database import Database
from scheduler_svc.store.queries import evaluations, groups, replicas, tasks
from scheduler_svc.store.queries.in_flight import work_in_flight
from scheduler_svc.store.queries.tasks import Task

LOST_STEPS_EVERY_S = 60.0
STORE_EVERY_TICKS = 5
"""Between looks at how full the blob store is."""
STALLS_EVERY_S = 30.0
SPACING_S = 0.03
"""Between transactions that settle scores, and between admissions: under load one serves many."""
BEGIN_AT_ONCE = 4
"""Tasks that one transaction takes in or starts: of many that are submitted together, the first begin while the others are read."""
SETTLE_AT_ONCE = 256
POSTPONED_S = 5.0
"""After an error that the database's absence does not explain, and that may come again."""

log = structlog.get_logger()


class Scheduler:
    """One replica. Everything durable is in PostgreSQL; this object only remembers who is alive."""

    def __init__(self, settings: SchedulerSettings, bus: Bus, database: Database, pools: Pools) -> None:
        self._settings = settings
        self._policy = settings.policy
        self._bus = bus
        self._database = database
        self._pools = pools
        self._relay = Relay(database, bus)
        self._cleaner = GarbageCollector(database, bus, settings.sweep_s, self._relay.wake)
        self._deletions = Deletions(database, self._cleaner)
        self._admission_wanted = asyncio.Event()
        self._started = time.monotonic()
        self._replicas = Replicas(bus, self._admission_wanted.set)
        self._stretch = OversubscriptionController(settings.oversubscription, settings.most_oversubscription)
        self._calm = StabilityMonitor(bus, lambda: frozenset(report.replica for report in self._replicas.reports))

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as runners:
            runners.create_task(self._replicas.watch())
            runners.create_task(self._relay.run())
            runners.create_task(self._admit_when_wanted())
            runners.create_task(self._cleaner.run())
            postpone = partial(postponed, "tick_postponed")
            runners.create_task(run_periodically(self.look_at_clocks, self._settings.tick_s, self._tick_failed))
            runners.create_task(run_periodically(self._look_for_lost_steps, LOST_STEPS_EVERY_S, postpone))
            runners.create_task(run_periodically(self._watch_store, STORE_EVERY_TICKS * self._settings.tick_s, postpone, at_once=True))
            runners.create_task(run_periodically(self._look_for_stalls, STALLS_EVERY_S, postpone))
            for consumer, handler, most, spacing_s in (
                (streams.SCHEDULER_JOBS, self.take_jobs, BEGIN_AT_ONCE, 0.0),
                (streams.SCHEDULER_CHECKED, self.take_checks, BEGIN_AT_ONCE, 0.0),
                (streams.SCHEDULER_SCORED, self.take_scores, SETTLE_AT_ONCE, SPACING_S),
                (streams.SCHEDULER_WEIGHTS, self.take_weights, SETTLE_AT_ONCE, 0.0),
                (streams.SCHEDULER_FAILED, self.take_failures, SETTLE_AT_ONCE, 0.0),
            ):
                runners.create_task(self._bus.consume_batches(consumer, handler, max_batch=most, spacing_s=spacing_s))

    # -------------------------------------------------------------------------------------------------------- handlers

    async def take_jobs(self, deliveries: Sequence[Delivery]) -> None:
        offer = Offer(self._pools, self._replicas.families)
        ended: list[str] = []
        wishes = {
            each.sequence: await dead_letters.read_resend_request(self._bus, each)
            for each in deliveries
            if each.subject.startswith("jobs.resend.")
        }
        async with self._changing() as connection:
            for delivery in [delivery for delivery in deliveries if not is_deletion(delivery.subject)]:
                if delivery.sequence in wishes:
                    await dead_letters.resend(connection, wishes[delivery.sequence])
                    continue
                if over := await jobs.take_job(connection, delivery, offer, self._policy):
                    ended.append(over)
        for task in ended:
            await self._cleaner.purge(task)
        for delivery in [delivery for delivery in deliveries if is_deletion(delivery.subject)]:
            await self._deletions.take(delivery)
            self._relay.wake()

    async def take_checks(self, deliveries: Sequence[Delivery]) -> None:
        async with self._changing() as connection:
            for delivery in deliveries:
                await environment_checks.environment_checked(connection, delivery.read(EnvironmentChecked))

    async def take_scores(self, deliveries: Sequence[Delivery]) -> None:
        async with self._changing() as connection:
            await scores.trajectories_scored(connection, deliveries, self._policy)

    async def take_weights(self, deliveries: Sequence[Delivery]) -> None:
        advanced: list[Task] = []
        async with self._changing() as connection:
            for delivery in sorted(deliveries, key=lambda delivery: delivery.subject):  # tasks are locked in one order
                task = await weight_updates.weight_updated(connection, delivery.read(WeightUpdated), self._policy)
                if task is not None:
                    advanced.append(task)
        if advanced:
            self._cleaner.note(advanced)

    async def take_failures(self, deliveries: Sequence[Delivery]) -> None:
        async with self._changing() as connection:
            for delivery in deliveries:
                if not dead_letters.is_about_a_letter(delivery):
                    await dead_letters.message_failed(connection, delivery)

    @asynccontextmanager
    async def _changing(self) -> AsyncGenerator[AsyncConnection]:
        """A transaction whose commit wakes the relay and admission."""
        async with self._database.transaction() as connection:
            yield connection
        crashpoints.reached("after_commit")
        self._relay.wake()
        self._admission_wanted.set()

    # --------------------------------------------------------------------------------------------------------- runners

    async def _admit_when_wanted(self) -> None:
        not_before = 0.0
        while True:
            notice_cancellation()
            await self._admission_wanted.wait()
            await asyncio.sleep(max(0.0, not_before - time.monotonic()))
            began = time.monotonic()
            self._admission_wanted.clear()
            try:
                wants_more = True
                while wants_more:
                    async with self._database.transaction() as connection:
                        capacities = {pool: each.times(self._stretch.factor(pool)) for pool, each in self._replicas.samplers.items()}
                        letters, wants_more = await admission.admit(connection, capacities, self._policy, self._bus.clock.now_s())
                    if letters:
                        self._relay.wake()
                not_before = began + spaced(SPACING_S, time.monotonic() - began)
            except Exception as error:
                postponed("admission_postponed", error)
                await asyncio.sleep(0.2 if isinstance(error, Retry) else POSTPONED_S)
                self._admission_wanted.set()

    def _tick_failed(self, error: Exception) -> None:
        postponed("tick_postponed", error)
        self._calm.disturb()

    async def _look_for_lost_steps(self) -> None:
        if await send_lost_steps_again(self._database, self._bus):
            self._relay.wake()

    async def _watch_store(self) -> None:
        if await store_alarm.look(self._database, await Blobs(self._bus).usage(), self._settings.store_alarm):
            self._relay.wake()

    async def _look_for_stalls(self) -> None:
        if await warn_about_stalls(self._database, self._replicas.reports, running_s=time.monotonic() - self._started):
            self._relay.wake()

    async def look_at_clocks(self) -> None:
        """Record who is alive, void overdue groups, and give waiting tasks their environment."""
        calm_s, now_s, families = self._calm.look(), self._bus.clock.now_s(), self._replicas.families
        async with self._changing() as connection:
            await replicas.record_replicas(connection, self._replicas.reports)
            overdue = {task for task, _ in await groups.overdue_groups(connection, now_s)}
            late = await evaluations.overdue_groups(connection, now_s)
            waiting = await tasks.tasks_waiting_for_an_environment(connection) if families else set[str]()
            await self._look_at_samplers(connection, now_s)

        async def end_late(connection: AsyncConnection, task_id: str) -> None:
            by_id = {task.id: task for task in await tasks.lock_tasks(connection, [task_id])}
            await end_overdue(connection, by_id, [key for key in late if key[0] == task_id], calm_s=calm_s)

        await self._each(overdue, lambda connection, task: scores.void_overdue(connection, task, self._policy, now_s, calm_s=calm_s))
        await self._each({task for task, _ in late}, end_late)
        await self._each(waiting, lambda connection, task: environment_resolution.resolve_environment(connection, task, families))

    async def _look_at_samplers(self, connection: AsyncConnection, now_s: float) -> None:
        in_flight, spent = await work_in_flight(connection), await groups.time_spent(connection, now_s)
        for pool, samplers in self._replicas.samplers.items():
            if not samplers.sequences:
                continue
            used = in_flight[pool].total.share_of(samplers.times(self._stretch.factor(pool))) if pool in in_flight else 0.0
            self._stretch.look(pool, PoolLoad(samplers.sequences, samplers.sampled, used, spent.get(pool, 0.0)))
            metrics.OVERSUBSCRIPTION.labels(pool).set(self._stretch.factor(pool))

    async def _each(self, found: Collection[str], change: Callable[[AsyncConnection, str], Awaitable[None]]) -> None:
        """Change each task in a transaction of its own: one with which something is wrong keeps nothing from the others."""
        for task in sorted(found):
            try:
                async with self._changing() as connection:
                    await change(connection, task)
            except MarlaasError:
                raise
            except Exception:
                log.exception("task_not_changed", task=task)
