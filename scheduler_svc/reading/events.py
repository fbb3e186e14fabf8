"""Answers about the stored events of a task, and about dead letters."""

import json

from sqlalchemy import CTE, Text, case, func, literal_column, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.messages import (
    AskEvents,
    AskFailures,
    Event,
    EventsAnswer,
    FailedMessage,
    FailuresAnswer,
)
from common.messages.asks import PAGE_BYTES
from scheduler_svc.base.tables import dead_letters, deleted_tasks, event_numbers, events, tasks
from scheduler_svc.tenancy.question import Question, fitting, page

PAGE_SIZE = 200
"""Maximum rows per page, even if more would fit: one question must not occupy a replica for long."""

_SENDER = literal_column("split_part(dead_letters.subject, '.', 3)", Text)
"""Tenant in the subject of a job's dead letter, written as the index has it."""


async def answer_events(question: Question, request: AskEvents) -> EventsAnswer:
    """Events of a task after a number; empty for an unknown task, since clients ask before they submit."""
    async with question.reading() as connection:
        tenant = question.tenant or await _tenant_of(connection, request.task)
        if tenant is None:
            return EventsAnswer(events=[], last=0)
        found, last = await _events_after(connection, tenant, request.task, request.after, most=PAGE_SIZE)
    return EventsAnswer(events=fitting([_fitting(event) for event in found]), last=last)


async def _tenant_of(connection: AsyncConnection, task: str) -> str | None:
    """Tenant whose events an operator asks for; for events about no task, such as answers about prices, these are the operators' own."""
    return streams.EVERY_TENANT if task == "none" else await tenant_of(connection, task)


def _fitting(event: Event) -> Event:
    size = len(json.dumps(event.data))
    return event if size <= PAGE_BYTES else event.model_copy(update={"data": {"omitted_bytes": size}})


async def answer_failures(question: Question, request: AskFailures) -> FailuresAnswer:
    async with question.reading() as connection:
        found = await _failures(connection, question.tenant, request.task, after=request.after, most=PAGE_SIZE)
    kept, has_more = page(found, PAGE_SIZE)
    return FailuresAnswer(failures=kept, has_more=has_more)


async def _events_after(connection: AsyncConnection, tenant: str, task: str, number: int, *, most: int) -> tuple[list[Event], int]:
    """Up to `most` events above `number`, by number, and the number of the task's latest event; empty and 0 for an unknown task."""
    columns = (events.c.event, events.c.data, events.c.number, func.extract("epoch", events.c.at).label("at_s"))
    stored = select(*columns).where(events.c.tenant == tenant, events.c.task == task, events.c.number > number)
    rows = (await connection.execute(stored.order_by(events.c.number).limit(most))).all()
    last = select(event_numbers.c.last).where(event_numbers.c.tenant == tenant, event_numbers.c.task == task)
    found = [Event(tenant=tenant, task=task, event=row.event, at_s=float(row.at_s), data=row.data, number=row.number) for row in rows]
    return found, (await connection.execute(last)).scalar_one_or_none() or 0


async def tenant_of(connection: AsyncConnection, task: str) -> str | None:
    """Tenant of a current or deleted task; for an id never accepted, the first tenant that used it. Only for operators' questions."""
    for query in (
        select(tasks.c.tenant).where(tasks.c.id == task),
        select(deleted_tasks.c.tenant).where(deleted_tasks.c.id == task),
        select(events.c.tenant).where(events.c.task == task).order_by(events.c.id).limit(1),
    ):
        if (found := (await connection.execute(query)).scalar_one_or_none()) is not None:
            return found
    return None


async def _failures(connection: AsyncConnection, tenant: str | None, task: str | None, *, after: int, most: int) -> list[FailedMessage]:
    """Up to `most` dead letters above number `after`, by number: about the tenant's tasks and jobs. `tenant`: None for all.

    A job's letter names no task; its subject names the tenant: `jobs.<verb>.<tenant>`.
    """
    letters = dead_letters if tenant is None else _letters_of(tenant)
    sender = case((letters.c.subject.startswith("jobs."), func.split_part(letters.c.subject, ".", 3)))
    owner = func.coalesce(tasks.c.tenant, case((letters.c.task.is_(None), func.nullif(sender, "")))).label("owner")
    statement = (
        select(letters, owner)
        .select_from(letters.outerjoin(tasks, tasks.c.id == letters.c.task))
        .where(letters.c.sequence > after)
        .order_by(letters.c.sequence)
        .limit(most)
    )
    if task is not None:
        statement = statement.where(letters.c.task == task)
    return [
        FailedMessage(
            letter=row.sequence,
            tenant=row.owner,
            task=row.task,
            stage=row.stage,
            subject=row.subject,
            reason=row.reason,
            attempts=row.attempts,
        )
        for row in (await connection.execute(statement)).all()
    ]


def _letters_of(tenant: str) -> CTE:
    """The tenant's letters, materialized before sorting: otherwise PostgreSQL would scan all tenants' letters in order of their numbers."""
    of_tasks = select(dead_letters).where(dead_letters.c.task.in_(select(tasks.c.id).where(tasks.c.tenant == tenant)))
    of_jobs = select(dead_letters).where(dead_letters.c.task.is_(None), _SENDER.in_([tenant]), dead_letters.c.subject.startswith("jobs."))
    return union_all(of_tasks, of_jobs).cte("letters").prefix_with("MATERIALIZED")
