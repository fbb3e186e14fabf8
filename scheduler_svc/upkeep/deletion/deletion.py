"""Handles deletion jobs: delete removes an ended task, prune a tenant's old tasks and superseded blobs, delete-tenant a whole tenant.

A task is deleted in one transaction: its rows are replaced by one with its consumption, its status is removed, and no task can start from
it. The garbage collector then erases its data in NATS and emits `deleted`. Adapters that other tasks started from stay until those are
deleted too. Every job may be redelivered, or handled by several replicas concurrently.
"""

from collections.abc import Sequence

import structlog
from pydantic import JsonValue
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.blobs import StoredBlob
from common.bus import Delivery
from common.messages import ControlTask, DeleteTenant, PruneTasks
from scheduler_svc.base import deleted
from scheduler_svc.base.audit import Actor, accepted, refused
from scheduler_svc.base.context import HandlerContext, sender_of
from scheduler_svc.base.tables import aliases
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy.requests import Refusal, answering
from scheduler_svc.training.aliases import find_aliases
from scheduler_svc.training.queries import tasks
from scheduler_svc.upkeep.deletion import storage

PATIENCE_S = 900.0
"""Maximum seconds of the transaction that deletes a task: about a second per 100,000 trajectories."""

log = structlog.get_logger()


async def delete_ended(tx: Transaction, task: str, by: int) -> bool:
    """Delete an ended task; False if it is live, unknown, or has aliases. `by`: sequence of the requesting job."""
    await lock_with_source(tx.connection, task)
    found = await tasks.find_task(tx.connection, task)
    if found is None or found.is_live or await find_aliases(tx.connection, aliases.c.task == task):
        return False
    await deleted.delete_task(tx.connection, task, by)
    tx.post_deletion(streams.TASKS_BUCKET, task)
    log.info("task_deleted", task=task, tenant=found.tenant)
    return True


async def lock_with_source(connection: AsyncConnection, task: str) -> None:
    """Lock the task and its source, the task that it started from: no task then begins to rely on its hold on the source's adapter."""
    found = await tasks.find_task(connection, task)
    source = found.spec.start.task if found else None
    await tasks.lock_tasks(connection, [task] if source is None else [task, source])


MAX_NAMED_ALIASES = 5
MAX_NAMED_TASKS = 1000
"""Maximum tasks named in the answer to `prune`."""


async def delete_task(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.delete.<tenant>`. Raises: Reject if it cannot be decoded; Retry if PostgreSQL is unavailable."""
    job = delivery.read(ControlTask)
    async with context.database.transaction(patience_s=PATIENCE_S) as tx:
        await delete(tx, job, by=delivery.sequence, sender=sender_of(delivery))
    context.collector.enqueue_deletion()
    context.wake_relay()


async def prune_tasks(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.prune.<tenant>`. Raises: Reject if it cannot be decoded; Retry if NATS or PostgreSQL is unavailable."""
    request, database, collector = delivery.read(PruneTasks), context.database, context.collector
    surplus = await collector.surplus(request.tenant)
    async with database.transaction() as tx:
        ended = [] if request.ended_before_s is None else await deleted.ended_before(tx.connection, request.tenant, request.ended_before_s)
        freed = sum((await storage.bytes_of(tx.connection, ended)).values()) if ended else 0
    if not request.dry_run:
        for task in ended:
            async with database.transaction(patience_s=PATIENCE_S) as tx:
                if await delete_ended(tx, task, delivery.sequence):
                    tx.record(accepted(sender_of(delivery), task))
        await collector.delete_blobs([blob.name for blob in surplus])
        context.wake_relay()  # erasure waits until the outbox is published
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


async def delete(tx: Transaction, job: ControlTask, *, by: int, sender: Actor) -> bool:
    """Delete a task, or reject the job; returns whether it deleted. `by`: the job's sequence, which identifies its redelivery."""
    own = await tasks.find_task(tx.connection, job.task)
    if own is not None and own.tenant == job.tenant:
        await lock_with_source(tx.connection, job.task)
    found, gone = await tasks.find_task(tx.connection, job.task), await deleted.find(tx.connection, job.task)
    if gone is not None and gone.tenant == job.tenant:
        if gone.deleted_by == by:
            return False
        objection = f"task: '{job.task}' was deleted already, at {gone.deleted_at:%Y-%m-%d %H:%M:%S} UTC; only what it consumed is kept"
    elif found is None or found.tenant != job.tenant:
        unknown = f"task: no task '{job.task}' of tenant '{job.tenant}'"
        tx.answer(job.tenant, job.task, "rejected", {"verb": "delete", "reasons": [unknown]})
        return False
    elif found.is_live:
        objection = f"task: '{job.task}' is {found.state}; end it first with `marlaas cancel {job.task}`, then delete it"
    elif naming := await find_aliases(tx.connection, aliases.c.task == job.task):
        shown = ", ".join(f"'{each.name}'" for each in naming[:MAX_NAMED_ALIASES])
        objection = f"task: '{job.task}' has versions that {shown} names; delete the alias first, or let it name another"
    else:
        await delete_ended(tx, job.task, by)
        tx.record(accepted(sender, job.task))
        return True
    log.warning("job_rejected", verb="delete", task=job.task, tenant=job.tenant, reasons=[objection])
    tx.record(refused(sender, objection))
    tx.emit_event(job.tenant, job.task, "rejected", {"verb": "delete", "reasons": [objection]})
    return False


async def delete_tenant(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.delete-tenant.<tenant>`: mark the tenant; `upkeep/deletion/tenant_deletion.py` deletes it.

    Raises: Reject if it cannot be decoded; Retry if PostgreSQL is unavailable.
    """
    request = delivery.read(DeleteTenant)
    async with answering(context, delivery, request) as answer:
        if await deleted.begin_tenant(answer.tx.connection, request.tenant, delivery.sequence, request.request):
            log.info("tenant_deletion_begins", tenant=request.tenant)
            answer.tx.record(accepted(answer.by, request.tenant))
        elif (objection := await _objection(answer.tx, request.tenant, delivery.sequence)) is not None:
            raise Refusal(objection)
    context.wake_tenant_deletion()


async def _objection(tx: Transaction, tenant: str, by: int) -> str | None:
    """Why the tenant cannot be marked for deletion; None if an earlier delivery of the same job has marked it."""
    found = await deleted.find_tenant(tx.connection, tenant)
    if found is None:
        return f"tenant: no tenant '{tenant}'"
    if found.deleted_at is not None:
        return f"tenant: '{tenant}' was deleted already, at {found.deleted_at:%Y-%m-%d %H:%M:%S} UTC; only what it consumed is kept"
    return None if found.by == by else f"tenant: '{tenant}' is being deleted"
