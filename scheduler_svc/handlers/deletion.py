"""Handles deletion: delete removes a task that has ended, prune removes a tenant's old tasks and superseded blobs.

A task is deleted in one transaction: its rows become one with what it consumed, its status goes, and no task can start from it. The
garbage collector then erases its data in NATS and emits `deleted`. Adapters that other tasks started from stay until those are
deleted too. Every job may be redelivered, or handled by several replicas at once.
"""

from collections.abc import Sequence

import structlog
from pydantic import JsonValue
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.blobs import StoredBlob
from common.bus import Delivery
from common.messages import ControlTask, PruneTasks
from scheduler_svc.handlers.context import HandlerContext, check_tenant
from scheduler_svc.store.queries import deleted, storage, tasks
from scheduler_svc.store.transaction import Transaction

PATIENCE_S = 900.0
"""Time limit of the transaction that deletes a task: about a second for every 100,000 trajectories."""
MAX_NAMED_TASKS = 1000
"""Maximum tasks named in the answer to `prune`."""

log = structlog.get_logger()


async def delete_task(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.delete.<tenant>`. Raises: Reject when it is none; Retry when PostgreSQL is unavailable."""
    job = delivery.read(ControlTask)
    check_tenant(streams.token(delivery.subject, 2) or "", job.tenant)
    async with context.database.transaction(patience_s=PATIENCE_S) as tx:
        await delete(tx, job, by=delivery.sequence)
    context.collector.enqueue_deletion()
    context.wake_relay()


async def prune_tasks(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.prune.<tenant>`. Raises: Reject when it is none; Retry when NATS or PostgreSQL is unavailable."""
    request, database, collector = delivery.read(PruneTasks), context.database, context.collector
    check_tenant(streams.token(delivery.subject, 2) or "", request.tenant)
    surplus = await collector.surplus(request.tenant)
    async with database.transaction() as tx:
        ended = [] if request.ended_before_s is None else await deleted.ended_before(tx.connection, request.tenant, request.ended_before_s)
        freed = sum((await storage.bytes_of(tx.connection, ended)).values()) if ended else 0
    if not request.dry_run:
        for task in ended:
            async with database.transaction(patience_s=PATIENCE_S) as tx:
                await _delete_ended(tx, task, delivery.sequence)
        for blob in surplus:
            await collector.delete_blob(blob.name)
        context.wake_relay()  # erasure waits for what is published
        await collector.erase_deleted()
    log.info("pruned", tenant=request.tenant, tasks=len(ended), blobs=len(surplus), dry_run=request.dry_run)
    async with database.transaction() as tx:
        tx.emit_event(request.tenant, "none", "pruned", _answer(request, ended, freed, surplus))
    context.wake_relay()


def _answer(request: PruneTasks, ended: Sequence[str], freed: int, surplus: Sequence[StoredBlob]) -> dict[str, JsonValue]:
    of_tasks = {f"{task}." for task in ended}
    others = [blob for blob in surplus if f"{blob.name.partition('.')[0]}." not in of_tasks]
    return {
        "request": request.request,
        "dry_run": request.dry_run,
        "tasks": list(ended[:MAX_NAMED_TASKS]),
        "task_count": len(ended),
        "task_bytes": freed,
        "blobs": len(others),
        "blob_bytes": sum(blob.size_bytes for blob in others),
    }


async def delete(tx: Transaction, job: ControlTask, *, by: int) -> bool:
    """Delete a task, or reject the job. `by`: the job's sequence, by which its redelivery is recognized."""
    await _lock(tx.connection, job.task)
    found, gone = await tasks.find_task(tx.connection, job.task), await deleted.find(tx.connection, job.task)
    if gone is not None and gone.tenant == job.tenant:
        if gone.deleted_by == by:
            return False
        objection = f"task: '{job.task}' was deleted already, at {gone.deleted_at:%Y-%m-%d %H:%M:%S} UTC; only what it consumed is kept"
    elif found is None or found.tenant != job.tenant:
        objection = f"task: no task '{job.task}' of tenant '{job.tenant}'"
    elif found.is_live:
        objection = f"task: '{job.task}' is {found.state}; end it first with `marlaas cancel {job.task}`, then delete it"
    else:
        await _delete_ended(tx, job.task, by)
        return True
    log.warning("job_rejected", verb="delete", task=job.task, tenant=job.tenant, reasons=[objection])
    tx.emit_event(job.tenant, job.task, "rejected", {"verb": "delete", "reasons": [objection]})
    return False


async def _delete_ended(tx: Transaction, task: str, by: int) -> None:
    """Does nothing where the task is live, or already deleted."""
    await _lock(tx.connection, task)
    found = await tasks.find_task(tx.connection, task)
    if found is None or found.is_live:
        return
    await deleted.delete_task(tx.connection, task, by)
    tx.outbox.post_encoded(streams.value_subject(streams.TASKS_BUCKET, task), b"", "", {"KV-Operation": "DEL"})
    log.info("task_deleted", task=task, tenant=found.tenant)


async def _lock(connection: AsyncConnection, task: str) -> None:
    """Lock the task, and the one that it started from: no other task may start to rely on its hold on that adapter."""
    found = await tasks.find_task(connection, task)
    source = found.spec.start.task if found else None
    await tasks.lock_tasks(connection, [task] if source is None else [task, source])
