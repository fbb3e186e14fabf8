"""Queries on deleted tasks: each leaves one row, with what it consumed."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, func, insert, literal, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages.billing import TOKEN_KINDS
from scheduler_svc.store.states import LIVE
from scheduler_svc.store.tables import (
    dead_letters,
    deleted_tasks,
    evaluation_groups,
    evaluation_members,
    evaluations,
    events,
    groups,
    ledger,
    steps,
    tasks,
    trajectories,
)

OF_A_TASK = (evaluation_members, evaluation_groups, evaluations, trajectories, groups, steps, ledger, events, dead_letters)
"""Tables with rows of a task, referenced ones last: one statement for each table is faster than cascades."""


_KEEP_USAGE = text(
    "INSERT INTO deleted_usage (task, day, kind, tenant, pool, quantity, money) "
    "SELECT task, day, kind, tenant, pool, quantity, money FROM task_invoice WHERE task = :task"
)


@dataclass(frozen=True)
class DeletedTask:
    """A row of `deleted_tasks`."""

    id: str
    tenant: str
    deleted_by: int
    deleted_at: datetime


_ROW = select(deleted_tasks.c.id, deleted_tasks.c.tenant, deleted_tasks.c.deleted_by, deleted_tasks.c.deleted_at)


async def find(connection: AsyncConnection, task: str) -> DeletedTask | None:
    row = (await connection.execute(_ROW.where(deleted_tasks.c.id == task))).first()
    return DeletedTask(*row) if row else None


async def delete_task(connection: AsyncConnection, task: str, by: int) -> None:
    """Replace all rows of an ended, locked task by one with what it consumed, and its days on invoices. `by`: the job's sequence."""
    spent = {
        f"{kind}_tokens": select(func.coalesce(func.sum(ledger.c.tokens), 0))
        .where(ledger.c.task == task, ledger.c.kind == kind)
        .scalar_subquery()
        for kind in TOKEN_KINDS
    }
    own = {name: tasks.c[name] for name in ("id", "tenant", "state", "version", "submitted_at")}
    row = {**own, "name": literal(""), "ended_at": func.coalesce(tasks.c.ended_at, tasks.c.updated_at), **spent, "deleted_by": literal(by)}
    await connection.execute(insert(deleted_tasks).from_select(list(row), select(*row.values()).where(tasks.c.id == task)))
    await connection.execute(_KEEP_USAGE, {"task": task})
    for table in OF_A_TASK:
        await connection.execute(delete(table).where(table.c.task == task))
    await connection.execute(delete(tasks).where(tasks.c.id == task))


async def pending(connection: AsyncConnection) -> list[DeletedTask]:
    """Deleted tasks whose data may still be in NATS."""
    found = (await connection.execute(_ROW.where(deleted_tasks.c.freed_bytes.is_(None)).order_by(deleted_tasks.c.id))).all()
    return [DeletedTask(*row) for row in found]


async def erased(connection: AsyncConnection, task: str, freed_bytes: int) -> bool:
    """Record that the task's data is erased from NATS; False when that was recorded before."""
    statement = (
        update(deleted_tasks)
        .where(deleted_tasks.c.id == task, deleted_tasks.c.freed_bytes.is_(None))
        .values(freed_bytes=freed_bytes)
        .returning(deleted_tasks.c.id)
    )
    return (await connection.execute(statement)).first() is not None


async def deleted_among(connection: AsyncConnection, ids: Collection[str]) -> set[str]:
    """Deleted ones among these tasks."""
    return set((await connection.execute(select(deleted_tasks.c.id).where(deleted_tasks.c.id.in_(ids)))).scalars())


async def ended_before(connection: AsyncConnection, tenant: str, age_s: float) -> list[str]:
    """Tasks of the tenant that ended longer ago than `age_s`, by time of their end."""
    before = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, age_s)
    statement = select(tasks.c.id).where(tasks.c.tenant == tenant, tasks.c.state.not_in(LIVE), tasks.c.ended_at < before)
    return list((await connection.execute(statement.order_by(tasks.c.ended_at, tasks.c.id))).scalars())
