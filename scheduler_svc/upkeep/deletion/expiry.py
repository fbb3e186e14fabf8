"""Queries on the retention of ended tasks."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import RowMapping, delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.base.states import LIVE
from scheduler_svc.base.tables import events, tasks, tenants
from scheduler_svc.tenancy.decisions.expiry import KINDS


@dataclass(frozen=True)
class EndedTask:
    """A task that has ended, of a tenant with days of retention, or announced."""

    id: str
    tenant: str
    ended_s: float
    """Unix time."""
    announced: dict[str, float]
    """Kinds that were announced, with the Unix time of it."""
    expired: list[str]
    """Kinds that are deleted."""
    days: dict[str, int]


_DAYS = [tenants.c[f"{kind}_days"] for kind in KINDS]
_ENDED_S = func.extract("epoch", func.coalesce(tasks.c.ended_at, tasks.c.updated_at)).label("ended_s")


async def ended_tasks(connection: AsyncConnection) -> list[EndedTask]:
    columns = (tasks.c.id, tasks.c.tenant, _ENDED_S, tasks.c.expiring, tasks.c.expired)
    statement = select(*columns, *_DAYS).join(tenants, tenants.c.id == tasks.c.tenant)
    wanted = or_(tasks.c.expiring != {}, *(days > 0 for days in _DAYS))
    rows = (await connection.execute(statement.where(tasks.c.state.not_in(LIVE), wanted).order_by(tasks.c.id))).mappings()
    return [_ended(row) for row in rows]


def _ended(row: RowMapping) -> EndedTask:
    days = {kind: row[f"{kind}_days"] for kind in KINDS}
    return EndedTask(row["id"], row["tenant"], float(row["ended_s"]), row["expiring"], row["expired"], days)


async def announce(connection: AsyncConnection, task: str, before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Record what is announced; False where another replica has changed it, or the task is gone."""
    guard = (tasks.c.id == task) & (tasks.c.expiring == dict(before))
    return (await connection.execute(update(tasks).where(guard).values(expiring=dict(after)).returning(tasks.c.id))).first() is not None


async def expire(connection: AsyncConnection, task: str, expired: Collection[str]) -> None:
    """Record kinds whose data is no longer needed."""
    await connection.execute(update(tasks).where(tasks.c.id == task).values(expired=sorted(expired)))


async def delete_events(connection: AsyncConnection, task: str) -> None:
    await connection.execute(delete(events).where(events.c.task == task))
