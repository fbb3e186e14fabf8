"""Queries on deleted tasks and tenants. A deleted task leaves one row with its consumption; a tenant keeps its row, with a receipt."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, cast, delete, func, insert, literal, select, text, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages.tenancy.billing import TOKEN_KINDS
from scheduler_svc.base.states import LIVE
from scheduler_svc.base.tables import (
    aliases,
    dead_letters,
    deleted_tasks,
    evaluations,
    events,
    groups,
    keys,
    ledger,
    packages,
    served_requests,
    steps,
    stored_blobs,
    tasks,
    tenants,
    trajectories,
    webhooks,
)

COUNTED = (tasks, groups, trajectories, steps, evaluations)
"""Tables whose rows a deletion receipt counts, by task."""
OF_A_TASK = (trajectories, groups, evaluations, steps, ledger, events, dead_letters)
"""Tables with rows of a task, referenced tables last: one statement per table is faster than cascades."""


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
    """Replace all rows of an ended, locked task by a row of its consumption and rows of its days on invoices. `by`: the job's sequence."""
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
    """Deleted tasks whose data is not recorded as erased from NATS."""
    found = (await connection.execute(_ROW.where(deleted_tasks.c.freed_bytes.is_(None)).order_by(deleted_tasks.c.id))).all()
    return [DeletedTask(*row) for row in found]


async def erased(connection: AsyncConnection, task: str, freed_bytes: int) -> bool:
    """Record that the task's data is erased from NATS; False if that was already recorded."""
    statement = (
        update(deleted_tasks)
        .where(deleted_tasks.c.id == task, deleted_tasks.c.freed_bytes.is_(None))
        .values(freed_bytes=freed_bytes)
        .returning(deleted_tasks.c.id)
    )
    return (await connection.execute(statement)).first() is not None


async def deleted_among(connection: AsyncConnection, ids: Collection[str]) -> set[str]:
    """Ids of deleted tasks among `ids`."""
    return set((await connection.execute(select(deleted_tasks.c.id).where(deleted_tasks.c.id.in_(ids)))).scalars())


async def ended_before(connection: AsyncConnection, tenant: str, age_s: float) -> list[str]:
    """Tasks of the tenant that ended more than `age_s` ago and have no alias, by time of their end."""
    before = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, age_s)
    has_alias = select(aliases.c.name).where(aliases.c.task == tasks.c.id).exists()
    statement = select(tasks.c.id).where(tasks.c.tenant == tenant, tasks.c.state.not_in(LIVE), tasks.c.ended_at < before, ~has_alias)
    return list((await connection.execute(statement.order_by(tasks.c.ended_at, tasks.c.id))).scalars())


# -------------------------------------------------------------------------------------------------------------- tenants


@dataclass(frozen=True)
class DeletedTenant:
    """A tenant whose deletion was requested."""

    id: str
    by: int
    """Sequence of the requesting job."""
    deletion: dict[str, Any]
    """Id of the request as `request`; once all tasks have ended, also the receipt: counts of deleted rows and messages. `Any`: JSON."""
    deleted_at: datetime | None
    """Time at which the deletion was complete; None until then."""


_TENANT = select(tenants.c.id, tenants.c.deleted_by, tenants.c.deletion, tenants.c.deleted_at).where(tenants.c.deleted_by.is_not(None))
_IS_PACKAGE = func.split_part(dead_letters.c.subject, ".", 2) == "package"
_IS_JOB = func.split_part(dead_letters.c.subject, ".", 1) == "jobs"


async def begin_tenant(connection: AsyncConnection, tenant: str, by: int, request: str) -> bool:
    """Mark a tenant for deletion; False if it does not exist or is already marked. Its lock waits for concurrent submissions."""
    row = (await connection.execute(select(tenants.c.deleted_by).where(tenants.c.id == tenant).with_for_update())).first()
    if row is None or row.deleted_by is not None:
        return False
    live = select(func.count()).where(tasks.c.tenant == tenant, tasks.c.state.in_(LIVE))
    cancelled = int((await connection.execute(live)).scalar_one())
    begun = {"request": request, "cancelled": cancelled}
    await connection.execute(update(tenants).where(tenants.c.id == tenant).values(deleted_by=by, deletion=begun))
    return True


async def find_tenant(connection: AsyncConnection, tenant: str) -> DeletedTenant | None:
    """The tenant's deletion; None if there is no such tenant, or no deletion was requested."""
    row = (await connection.execute(_TENANT.where(tenants.c.id == tenant))).first()
    return DeletedTenant(*row) if row else None


async def pending_tenants(connection: AsyncConnection) -> list[DeletedTenant]:
    """Tenants whose deletion is not complete."""
    rows = (await connection.execute(_TENANT.where(tenants.c.deleted_at.is_(None)).order_by(tenants.c.id))).all()
    return [DeletedTenant(*row) for row in rows]


async def tasks_of_tenant(connection: AsyncConnection, tenant: str) -> list[str]:
    return list((await connection.execute(select(tasks.c.id).where(tasks.c.tenant == tenant).order_by(tasks.c.id))).scalars())


async def count_tenant(connection: AsyncConnection, tenant: str, messages: int) -> None:
    """Store the receipt of a tenant whose tasks have ended, unless it is already stored. `messages`: number of its messages in NATS."""
    own = select(tasks.c.id).where(tasks.c.tenant == tenant)
    counts = {table.name: select(func.count()).where((table.c.id if table is tasks else table.c.task).in_(own)) for table in COUNTED}
    counts |= {"events": select(func.count()).where(events.c.tenant == tenant)}
    counts |= {"dead_letters": select(func.count()).where(dead_letters.c.task.in_(own) | _of_jobs(tenant))}
    counts |= {"keys": select(func.count()).where(keys.c.tenant == tenant)}
    counts |= {"blobs": select(func.count()).where(stored_blobs.c.task.in_(own))}
    counts |= {"blob_bytes": select(func.coalesce(func.sum(stored_blobs.c.bytes), 0)).where(stored_blobs.c.task.in_(own))}
    counts |= {"packages": select(func.count()).where(packages.c.tenant == tenant)}
    counts |= {"package_bytes": select(func.coalesce(func.sum(packages.c.size_bytes), 0)).where(packages.c.tenant == tenant)}
    row = (await connection.execute(select(*(count.scalar_subquery().label(name) for name, count in counts.items())))).one()
    receipt = {name: int(count) for name, count in row._mapping.items()} | {"messages": messages}
    statement = update(tenants).where(tenants.c.id == tenant, tenants.c.deletion["messages"].is_(None))
    await connection.execute(statement.values(deletion=tenants.c.deletion.op("||")(cast(receipt, JSONB))))


async def letters_about_jobs(connection: AsyncConnection, tenant: str) -> list[int]:
    """Stream sequences of dead letters about the tenant's jobs, which belong to no task."""
    return list((await connection.execute(select(dead_letters.c.sequence).where(_of_jobs(tenant)))).scalars())


async def finish_tenant(connection: AsyncConnection, tenant: str) -> DeletedTenant | None:
    """Delete the rows of a tenant without tasks, except that in `tenants`, and record the deletion as complete; None if it already was."""
    await connection.execute(delete(events).where(events.c.tenant == tenant))
    await connection.execute(delete(dead_letters).where(_of_jobs(tenant)))
    await connection.execute(delete(keys).where(keys.c.tenant == tenant))
    await connection.execute(delete(webhooks).where(webhooks.c.tenant == tenant))
    await connection.execute(delete(served_requests).where(served_requests.c.tenant == tenant))
    statement = update(tenants).where(tenants.c.id == tenant, tenants.c.deleted_at.is_(None)).values(deleted_at=func.now())
    return await find_tenant(connection, tenant) if (await connection.execute(statement.returning(tenants.c.id))).first() else None


def _of_jobs(tenant: str) -> ColumnElement[bool]:
    """Condition for dead letters about the tenant's jobs and its packages, whose subjects end with the tenant and a digest."""
    of_package = _IS_PACKAGE & (func.split_part(dead_letters.c.subject, ".", -2) == tenant)
    return (_IS_JOB & (func.split_part(dead_letters.c.subject, ".", 3) == tenant)) | of_package
