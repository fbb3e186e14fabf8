"""Queries on the trainer's announcements: of which step one is, and the one of a task's version."""

from dataclasses import dataclass

from sqlalchemy import Integer, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import AdapterRef, BlobRef, CheckpointRef, WeightUpdated, from_json
from scheduler_svc.store.queries.sql.parameters import given
from scheduler_svc.store.queries.sql.statement import Statement
from scheduler_svc.store.queries.training.steps import SentStep
from scheduler_svc.store.queries.training.tasks import Task
from scheduler_svc.store.states import LIVE, StepState
from scheduler_svc.store.tables import ledger, steps, tasks


@dataclass(frozen=True)
class AnnouncedTask:
    """The task that an announcement is about, and the step that it would be of."""

    tenant: str
    pool: str
    version: int
    is_live: bool
    step: SentStep | None
    """None where no such step is with the trainer."""


_ANNOUNCED = Statement(
    select(tasks.c.tenant, tasks.c.pool, tasks.c.version, tasks.c.state, steps.c.state.label("step_state"), steps.c.digest)
    .select_from(tasks.outerjoin(steps, (steps.c.task == tasks.c.id) & (steps.c.version == given("from_version", Integer))))
    .where(tasks.c.id == given("of_task"))
)


async def announced_task(connection: AsyncConnection, updated: WeightUpdated) -> AnnouncedTask | None:
    """None where there is no such task."""
    rows = await _ANNOUNCED.run(connection, {"of_task": updated.task, "from_version": updated.version - 1})
    if not rows:
        return None
    row = rows[0]
    step = SentStep(updated.task, row.pool, updated.version - 1, row.digest) if row.step_state == StepState.BATCHED else None
    return AnnouncedTask(row.tenant, row.pool, row.version, row.state in LIVE, step)


async def announcement(connection: AsyncConnection, task: Task) -> WeightUpdated | None:
    """The trainer's announcement of the task's version; None at version 0."""
    tokens = (
        select(ledger.c.tokens)
        .where(ledger.c.task == steps.c.task, ledger.c.kind == "trained", ledger.c.number == steps.c.version + 1)
        .scalar_subquery()
    )
    statement = select(steps, func.coalesce(tokens, 0).label("trained_tokens")).where(
        steps.c.task == task.id, steps.c.version == task.version - 1, steps.c.state == StepState.TRAINED
    )
    row = (await connection.execute(statement)).mappings().first()
    if row is None:
        return None
    return WeightUpdated(
        tenant=task.tenant,
        task=task.id,
        pool=task.spec.pool,
        version=task.version,
        adapter=from_json(AdapterRef, row["adapter"]),
        checkpoint=from_json(CheckpointRef, row["checkpoint"]),
        trained=row["digest"],
        batch=from_json(BlobRef, row["batch"]) if row["batch"] else None,
        metrics=row["metrics"],
        trained_tokens=row["trained_tokens"],
        started_s=row["started_at"].timestamp(),
        finished_s=row["finished_at"].timestamp(),
    )
