"""Queries on the trainer's announcements: of which step one is, what it advances, and the one of a task's version."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Integer, Text, cast, func, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import AdapterRef, BlobRef, CheckpointRef, WeightUpdated, from_json
from scheduler_svc.base.sql import Rows, Statement, any_of, given, in_state
from scheduler_svc.base.states import LIVE, StepState, TaskState
from scheduler_svc.base.tables import ledger, steps, tasks
from scheduler_svc.training.queries.steps import SentStep
from scheduler_svc.training.queries.tasks import TASK_COLUMNS, Task, task_of


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


_made = Rows("made", task=Text, tenant=Text, pool=Text, version=Integer, trained=Text, adapter=Text, checkpoint=Text)
_locked = select(tasks.c.id).where(tasks.c.id == any_of("made_task")).order_by(tasks.c.id).with_for_update().cte("locked")  # in one order
_is_sent = (
    select(steps.c.task)
    .where(steps.c.task == tasks.c.id, steps.c.version == tasks.c.version, in_state(steps.c.state, StepState.BATCHED))
    .where(steps.c.digest == _made.c.trained)
    .exists()
)
_ADVANCE = Statement(
    update(tasks)
    .where(
        tasks.c.id == _locked.c.id,
        tasks.c.id == _made.c.task,
        tasks.c.tenant == _made.c.tenant,
        tasks.c.pool == _made.c.pool,
        tasks.c.version == _made.c.version - 1,
        in_state(tasks.c.state, TaskState.RUNNING, TaskState.PAUSED),
        _is_sent,
    )
    .values(
        version=tasks.c.version + 1,
        adapter=cast(_made.c.adapter, JSONB),
        checkpoint=cast(_made.c.checkpoint, JSONB),
        updated_at=func.now(),
    )
    .returning(*TASK_COLUMNS)
)


async def advance_versions(connection: AsyncConnection, updates: Collection[WeightUpdated]) -> dict[str, Task]:
    """Compare-and-set of each task to the version that the step with the trainer made; `updates`: one of each task.

    Returns the advanced tasks by id. All are locked, also those that have ended, have another version or have sent another step.
    """
    made = [
        (
            each.task,
            each.tenant,
            each.pool,
            each.version,
            each.trained,
            each.adapter.model_dump_json(),
            each.checkpoint.model_dump_json(),
        )
        for each in updates
    ]
    return {row.id: task_of(row) for row in await _ADVANCE.run(connection, _made.of(made))}


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
