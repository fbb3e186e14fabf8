"""Stored events of one task."""

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import Event
from scheduler_svc.base.tables import deleted_tasks, event_numbers, events, tasks


async def events_after(connection: AsyncConnection, tenant: str, task: str, number: int, *, most: int) -> tuple[list[Event], int]:
    """At most so many events above `number`, by number, and the number of the task's latest event; none and 0 for an unknown task."""
    columns = (events.c.event, events.c.data, events.c.number, func.extract("epoch", events.c.at).label("at_s"))
    stored = select(*columns).where(events.c.tenant == tenant, events.c.task == task, events.c.number > number)
    rows = (await connection.execute(stored.order_by(events.c.number).limit(most))).all()
    last = select(event_numbers.c.last).where(event_numbers.c.tenant == tenant, event_numbers.c.task == task)
    found = [Event(tenant=tenant, task=task, event=row.event, at_s=float(row.at_s), data=row.data, number=row.number) for row in rows]
    return found, (await connection.execute(last)).scalar_one_or_none() or 0


async def tenant_of(connection: AsyncConnection, task: str) -> str | None:
    """Whose task it is or was; of an id that was never accepted, who used it first. For the operator's questions only."""
    for query in (
        select(tasks.c.tenant).where(tasks.c.id == task),
        select(deleted_tasks.c.tenant).where(deleted_tasks.c.id == task),
        select(events.c.tenant).where(events.c.task == task).order_by(events.c.id).limit(1),
    ):
        if (found := (await connection.execute(query)).scalar_one_or_none()) is not None:
            return found
    return None
