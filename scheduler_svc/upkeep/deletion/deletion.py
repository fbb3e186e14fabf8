"""Deletion of a task's rows. Its data in NATS is erased afterwards, by the garbage collector."""

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from scheduler_svc.base.queries import deleted
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.training import aliases
from scheduler_svc.training.queries import tasks

PATIENCE_S = 900.0
"""Time limit of the transaction that deletes a task: about a second for every 100,000 trajectories."""

log = structlog.get_logger()


async def delete_ended(tx: Transaction, task: str, by: int) -> bool:
    """Delete a task that has ended; False where it is live, deleted already, or has aliases. `by`: sequence of the requesting job."""
    await lock_with_source(tx.connection, task)
    found = await tasks.find_task(tx.connection, task)
    if found is None or found.is_live or await aliases.of_task(tx.connection, task):
        return False
    await deleted.delete_task(tx.connection, task, by)
    tx.outbox.post_encoded(streams.value_subject(streams.TASKS_BUCKET, task), b"", "", {"KV-Operation": "DEL"})
    log.info("task_deleted", task=task, tenant=found.tenant)
    return True


async def lock_with_source(connection: AsyncConnection, task: str) -> None:
    """Lock the task, and the one that it started from: no other task may start to rely on its hold on that adapter."""
    found = await tasks.find_task(connection, task)
    source = found.spec.start.task if found else None
    await tasks.lock_tasks(connection, [task] if source is None else [task, source])
