"""Stalled tasks: lost steps are resent, other stalls raise warnings, and infrastructure disturbances do not count as failures.

A warning names what the task waits for, and is cleared once there is progress.

A `trajectories.batch` stays in its stream until the step is announced. A step that PostgreSQL records as sent, without a message in
the stream and without an announcement, is therefore lost: an operator deleted a message, or NATS lost one after its acknowledgement.
A step is also lost if only another batch was announced, or if its message is in the queue of a trainer that was removed from the pools
file; that message is purged. The trainer handles a resent step like any other; if both are trained,
compare-and-set on the version decides which counts.

Groups that time out repeatedly fail their task, because its environment hangs. Groups that timed out while NATS or PostgreSQL was
unavailable, replicas started or stopped, a clock jumped, or samplers of their pool withheld sequences for served requests are voided and
refilled, but do not count as failures.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from math import inf

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.bus import Bus
from common.errors import Reject
from common.messages import ReplicaReport, WeightUpdated
from scheduler_svc.accelerators.asked import accelerator_waits
from scheduler_svc.accelerators.decisions.waits import NEVER_S
from scheduler_svc.base.database import Database
from scheduler_svc.training.decisions.endings import NO_PROGRESS_S, Stall, TaskWarning, no_progress, parked
from scheduler_svc.training.decisions.pool_load import PoolTimes, StableFor
from scheduler_svc.training.queries import steps, tasks
from scheduler_svc.training.queries.progress import stalled_tasks
from scheduler_svc.training.queries.steps import SentStep
from scheduler_svc.training.steps import send_to_trainer
from scheduler_svc.training.task_events import emit_warnings, publish_status


async def warn_about_stalls(
    database: Database, reports: Sequence[ReplicaReport], *, running_s: float, limit_s: float = NO_PROGRESS_S
) -> bool:
    """Raise and clear stall warnings; True if any changed. `running_s`: uptime of this scheduler.

    No warning is raised before an uptime of `limit_s`: the whole stack may have been stopped.
    Raises: Retry if PostgreSQL is unavailable.
    """
    async with database.transaction() as tx:
        seen = await stalled_tasks(tx.connection, limit_s)
    changed = False
    for task_id in sorted(seen):
        async with database.transaction() as tx:
            for task in await tasks.lock_tasks(tx.connection, [task_id]):
                stall = (await stalled_tasks(tx.connection, limit_s, [task_id])).get(task_id)  # state under the lock
                if stall is not None and running_s < limit_s:
                    continue
                standing = {TaskWarning(name): sentence for name, sentence in task.warnings.items()}
                for name in (TaskWarning.NO_PROGRESS, TaskWarning.PARKED):
                    standing.pop(name, None)
                if stall is not None:
                    name, sentence = await _warning(tx.connection, stall, reports)
                    standing[name] = sentence
                warned = await emit_warnings(tx, task, standing)
                if warned is not task:
                    changed = True
                    await publish_status(tx, warned)
    return changed


async def _warning(connection: AsyncConnection, stall: Stall, reports: Sequence[ReplicaReport]) -> tuple[TaskWarning, str]:
    """Warning of a stalled task. A pool may also be parked for lack of sampling work: its tasks then do not wait for the accelerator."""
    if stall.parked_s is None:
        return TaskWarning.NO_PROGRESS, no_progress(stall, _alive(reports, stall))
    waits = await accelerator_waits(connection, stall.pool)
    ready = [one for one in waits.values() if one.has_work]
    if waits and not ready:
        return TaskWarning.NO_PROGRESS, no_progress(replace(stall, seconds=stall.parked_s), _alive(reports, stall))
    left_s = min((one.left_s for one in ready if not one.is_held), default=NEVER_S)
    return TaskWarning.PARKED, parked(stall.pool, stall.parked_s, left_s if left_s < NEVER_S else None)


def _alive(reports: Sequence[ReplicaReport], stall: Stall) -> Counter[str]:
    """Number of live replicas that could work for the task, by service."""
    return Counter(
        report.service for report in reports if (stall.family in report.families if report.service == "env" else report.pool == stall.pool)
    )


AGE_S = 150.0
"""Minimum age of a lost step in seconds: above NATS's deduplication window, which would drop the resent message."""

log = structlog.get_logger()


async def resend_lost_steps(database: Database, bus: Bus, queues: Collection[str] = (), *, age_s: float = AGE_S) -> bool:
    """Resend steps lost for longer than `age_s`; True if there were any. `queues`: queues of single trainers, beside the pools' own.

    Raises: Retry if NATS or PostgreSQL is unavailable.
    """
    async with database.transaction() as tx:
        sent = await steps.sent_before(tx.connection, age_s)
    lost = [step for step in sent if await _is_lost(bus, step, queues)]
    for step in lost:
        async with database.transaction() as tx:
            for task in await tasks.lock_tasks(tx.connection, {step.task}):
                if task.is_live and task.version == step.version and await steps.is_sent(tx.connection, step):
                    log.warning("step_sent_again", task=task.id, version=task.version)
                    await send_to_trainer(tx, [(task, await steps.members_of_step(tx.connection, task.id, task.version))])
    return bool(lost)


async def _is_lost(bus: Bus, step: SentStep, queues: Collection[str]) -> bool:
    # Read in this order: a step's message is removed after the announcement.
    for subject in await bus.streams.subjects(streams.BATCHES, streams.batch("*", step.task)):
        queue = streams.token(subject, 2)
        if queue == step.pool or queue in queues:
            return False
        log.warning("step_without_trainer", task=step.task, subject=subject)
        await bus.streams.purge(streams.BATCHES, subject)
    announced = await bus.streams.last(streams.WEIGHTS, streams.weight_updated(step.pool, step.task))
    try:
        return announced is None or not step.is_made_by(announced.read(WeightUpdated))
    except Reject:  # not an announcement that the scheduler can decode
        return True


JUMP_S = 5.0
"""Seconds by which NATS's clock and the monotonic clock must diverge to count as a jump, as after a laptop's sleep."""


class StabilityMonitor:
    """Time since the last disturbance. Queried at every tick. `replicas`: returns the live replicas."""

    def __init__(self, bus: Bus, replicas: Callable[[], Hashable]) -> None:
        self._bus = bus
        self._replicas = replicas
        self._alive = replicas()
        self._ahead_s = bus.clock.now_s() - time.monotonic()
        self._since = time.monotonic()
        self._noted: float | None = None
        """Value of `_since` for which `_parked_s`, the pools' total parked seconds at that time, was recorded."""
        self._withheld: dict[str, float] = {}
        """Monotonic time at which a pool's samplers last withheld sequences, by pool."""
        self._parked_s: dict[str, float] = {}

    def stable_for_s(self) -> float:
        """Check for a disturbance; returns the seconds since the last one."""
        alive, ahead_s = self._replicas(), self._bus.clock.now_s() - time.monotonic()
        if abs(ahead_s - self._ahead_s) > JUMP_S:
            log.warning("clock_jumped", by_s=round(ahead_s - self._ahead_s, 1))
            self.reset()
        elif alive != self._alive or not self._bus.is_connected:
            self.reset()
        self._alive, self._ahead_s = alive, ahead_s
        return time.monotonic() - self._since

    def stable_in(self, times: PoolTimes, withheld: Collection[str]) -> StableFor:
        """Check for a disturbance; returns a function: pool name → seconds since the last disturbance, on the pool's clock.

        `withheld`: pools whose samplers withhold sequences now.
        """
        stable_for_s, now_s = self.stable_for_s(), time.monotonic()
        self._withheld |= dict.fromkeys(withheld, now_s)
        if self._noted != self._since:
            self._noted, self._parked_s = self._since, {pool: times.parked_s(pool) for pool in times.clocks}
        parked_s = {pool: times.parked_s(pool) - self._parked_s.get(pool, 0.0) for pool in times.clocks}
        return lambda pool: min(stable_for_s, now_s - self._withheld.get(pool, -inf)) - max(0.0, parked_s.get(pool, 0.0))

    def reset(self) -> None:
        self._since = time.monotonic()
