"""Delete tasks that have ended, and prune: what users ask for so that the store does not only grow.

A task is deleted in one transaction: its rows become one with what it consumed, its status goes, and from then on no task can start
from it. What NATS holds of it the cleaner erases, as long as it takes, and then announces `deleted`. Adapters that other tasks
started from stay until those are deleted too.
"""

from collections.abc import Sequence

import structlog
from pydantic import JsonValue
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.blobs import StoredBlob
from common.bus import Delivery
from common.messages import ControlTask, PruneTasks
from scheduler_svc.handlers.jobs import same_tenant
from scheduler_svc.lifecycle.task_events import announce
from scheduler_svc.maintenance.garbage_collector import GarbageCollector
from scheduler_svc.store.database import Database
from scheduler_svc.store.queries import deleted, outbox, storage, tasks

PATIENCE_S = 900.0
"""For the transaction that deletes a task: it takes about a second for every 100,000 trajectories."""
MAX_NAMED_TASKS = 1000
"""Tasks that an answer to `prune` names."""

log = structlog.get_logger()


def is_deletion(subject: str) -> bool:
    return streams.token(subject, 1) in ("delete", "prune")


class Deletions:
    """Takes jobs of `jobs.delete.<tenant>` and `jobs.prune.<tenant>`. Safe to run twice, and by several replicas at once."""

    def __init__(self, database: Database, cleaner: GarbageCollector) -> None:
        self._database = database
        self._cleaner = cleaner

    async def take(self, delivery: Delivery) -> None:
        """Raises: Reject when it is neither; Retry when NATS or PostgreSQL is away."""
        tenant = streams.token(delivery.subject, 2) or ""
        if streams.token(delivery.subject, 1) == "delete":
            job = delivery.read(ControlTask)
            same_tenant(tenant, job.tenant)
            async with self._database.transaction(patience_s=PATIENCE_S) as connection:
                await delete(connection, job, by=delivery.sequence)
            self._cleaner.note_deletion()
        else:
            wish = delivery.read(PruneTasks)
            same_tenant(tenant, wish.tenant)
            await self._prune(wish, by=delivery.sequence)

    async def _prune(self, wish: PruneTasks, *, by: int) -> None:
        surplus = await self._cleaner.surplus(wish.tenant)
        async with self._database.transaction() as connection:
            ended = [] if wish.ended_before_s is None else await deleted.ended_before(connection, wish.tenant, wish.ended_before_s)
            freed = sum((await storage.bytes_of(connection, ended)).values()) if ended else 0
        if not wish.dry_run:
            for task in ended:
                async with self._database.transaction(patience_s=PATIENCE_S) as connection:
                    await _delete_ended(connection, task, by)
            for blob in surplus:
                await self._cleaner.delete_blob(blob.name)
            await self._cleaner.erase_deleted()
        log.info("pruned", tenant=wish.tenant, tasks=len(ended), blobs=len(surplus), dry_run=wish.dry_run)
        async with self._database.transaction() as connection:
            announce(connection, wish.tenant, "none", "pruned", _answer(wish, ended, freed, surplus))


def _answer(wish: PruneTasks, ended: Sequence[str], freed: int, surplus: Sequence[StoredBlob]) -> dict[str, JsonValue]:
    of_tasks = {f"{task}." for task in ended}
    others = [blob for blob in surplus if f"{blob.name.partition('.')[0]}." not in of_tasks]
    return {
        "request": wish.request,
        "dry_run": wish.dry_run,
        "tasks": list(ended[:MAX_NAMED_TASKS]),
        "task_count": len(ended),
        "task_bytes": freed,
        "blobs": len(others),
        "blob_bytes": sum(blob.size_bytes for blob in others),
    }


async def delete(connection: AsyncConnection, job: ControlTask, *, by: int) -> bool:
    """Delete a task, or say why not; `by` is the job's sequence, so that its redelivery is none."""
    await _lock(connection, job.task)
    found, gone = await tasks.find_task(connection, job.task), await deleted.find(connection, job.task)
    if gone is not None and gone.tenant == job.tenant:
        if gone.deleted_by == by:
            return False
        objection = f"task: '{job.task}' was deleted already, at {gone.deleted_at:%Y-%m-%d %H:%M:%S} UTC; only what it consumed is kept"
    elif found is None or found.tenant != job.tenant:
        objection = f"task: no task '{job.task}' of tenant '{job.tenant}'"
    elif found.is_live:
        objection = f"task: '{job.task}' is {found.state}; end it first with `marlaas cancel {job.task}`, then delete it"
    else:
        await _delete_ended(connection, job.task, by)
        return True
    log.warning("job_rejected", verb="delete", task=job.task, tenant=job.tenant, reasons=[objection])
    announce(connection, job.tenant, job.task, "rejected", {"verb": "delete", "reasons": [objection]})
    return False


async def _delete_ended(connection: AsyncConnection, task: str, by: int) -> None:
    """Nothing happens where the task is live, or deleted, by now."""
    await _lock(connection, task)
    found = await tasks.find_task(connection, task)
    if found is None or found.is_live:
        return
    await deleted.delete_task(connection, task, by)
    outbox.post_as_it_was(connection, streams.value_subject(streams.TASKS_BUCKET, task), b"", "", {"KV-Operation": "DEL"})
    log.info("task_deleted", task=task, tenant=found.tenant)


async def _lock(connection: AsyncConnection, task: str) -> None:
    """The task, and the one that it started from: no other task may be about to rely on this one's hold on its adapter."""
    found = await tasks.find_task(connection, task)
    source = found.spec.start.task if found else None
    await tasks.lock_tasks(connection, [task] if source is None else [task, source])
