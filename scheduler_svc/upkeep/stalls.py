"""Stall warnings: names what a task without progress waits for, and clears the warning once there is progress."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import ReplicaReport
from scheduler_svc.accelerators.asked import accelerator_waits
from scheduler_svc.accelerators.decisions.waits import NEVER_S
from scheduler_svc.base.database import Database
from scheduler_svc.training.decisions.endings.task_warnings import NO_PROGRESS_S, Stall, TaskWarning, no_progress, parked
from scheduler_svc.training.queries import tasks
from scheduler_svc.training.queries.progress import stalled_tasks
from scheduler_svc.training.task_events import emit_warnings, publish_status


async def warn_about_stalls(
    database: Database, reports: Sequence[ReplicaReport], *, running_s: float, limit_s: float = NO_PROGRESS_S
) -> bool:
    """Raise and clear stall warnings; True if there were any. `running_s`: uptime of this scheduler.

    No warning is raised before an uptime of `limit_s`: the whole stack may have been stopped.
    Raises: Retry when PostgreSQL is unavailable.
    """
    async with database.transaction() as tx:
        seen = await stalled_tasks(tx.connection, limit_s)
    changed = False
    for task_id in sorted(seen):
        async with database.transaction() as tx:
            for task in await tasks.lock_tasks(tx.connection, [task_id]):
                stall = (await stalled_tasks(tx.connection, limit_s, [task_id])).get(task_id)  # its state under the lock
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
    """A pool is also parked because nothing of it is to be sampled: then its tasks do not wait for the accelerator."""
    if stall.parked_s is None:
        return TaskWarning.NO_PROGRESS, no_progress(stall, _alive(reports, stall))
    waits = await accelerator_waits(connection, stall.pool)
    ready = [one for one in waits.values() if one.has_work]
    if waits and not ready:
        return TaskWarning.NO_PROGRESS, no_progress(replace(stall, seconds=stall.parked_s), _alive(reports, stall))
    left_s = min((one.left_s for one in ready if not one.is_held), default=NEVER_S)
    return TaskWarning.PARKED, parked(stall.pool, stall.parked_s, left_s if left_s < NEVER_S else None)


def _alive(reports: Sequence[ReplicaReport], stall: Stall) -> Counter[str]:
    """Replicas by service that could work for the task."""
    return Counter(
        report.service for report in reports if (stall.family in report.families if report.service == "env" else report.pool == stall.pool)
    )
