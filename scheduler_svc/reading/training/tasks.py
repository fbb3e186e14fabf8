"""Answers about tasks: statuses, events, usage and dead letters."""

import json

from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.messages import (
    AskEvents,
    AskFailures,
    AskTask,
    AskTasks,
    AskUsage,
    Event,
    EventsAnswer,
    FailuresAnswer,
    StatusAnswer,
    TasksAnswer,
    UsageAnswer,
)
from common.messages.asks import PAGE_BYTES
from scheduler_svc.reading.queries import events, reports, statuses, usage
from scheduler_svc.tenancy.question import Question, page

MOST = 200
"""Maximum rows of a page, also where more would fit: one question must not occupy a replica for long."""


async def answer_tasks(question: Question, request: AskTasks) -> TasksAnswer:
    """Raises: Reject when the cursor is one of another order."""
    async with question.reading() as connection:
        found = await statuses.statuses(connection, question.tenant, request)
    kept = page([one.status for one in found])
    has_more = len(kept) < len(found) or len(found) == request.most
    return TasksAnswer(tasks=kept, cursor=found[len(kept) - 1].cursor if has_more else None)


async def answer_status(question: Question, request: AskTask) -> StatusAnswer:
    """Raises: Unknown."""
    async with question.reading() as connection:
        found = await statuses.status(connection, question.tenant, request.task)
    if found is None:
        raise question.unknown(request.task)
    return StatusAnswer(status=found)


async def answer_events(question: Question, request: AskEvents) -> EventsAnswer:
    """An unknown task has no events: a client asks for those of an id before it submits it."""
    async with question.reading() as connection:
        tenant = question.tenant or await _tenant_of(connection, request.task)
        if tenant is None:
            return EventsAnswer(events=[], last=0)
        found, last = await events.events_after(connection, tenant, request.task, request.after, most=MOST)
    return EventsAnswer(events=page([_fitting(event) for event in found]), last=last)


async def _tenant_of(connection: AsyncConnection, task: str) -> str | None:
    """Whose events an operator means; those about no task are its own, as answers about prices."""
    return streams.EVERY_TENANT if task == "none" else await events.tenant_of(connection, task)


def _fitting(event: Event) -> Event:
    size = len(json.dumps(event.data))
    return event if size <= PAGE_BYTES else event.model_copy(update={"data": {"omitted_bytes": size}})


async def answer_usage(question: Question, request: AskUsage) -> UsageAnswer:
    is_first = request.cursor is None
    async with question.reading() as connection:
        tenants = await usage.tenants_usage(connection, question.tenant) if is_first else []
        found = await usage.tasks_usage(connection, question.tenant, after=request.cursor, most=MOST)
    cursor = found[-1].task if len(found) == MOST else None
    if question.tenant is not None or not is_first:
        return UsageAnswer(tenants=tenants, tasks=found, cursor=cursor)
    store = await question.sources.blobs.usage()
    return UsageAnswer(tenants=tenants, tasks=found, cursor=cursor, store_bytes=store.used_bytes, store_limit_bytes=store.limit_bytes)


async def answer_failures(question: Question, request: AskFailures) -> FailuresAnswer:
    async with question.reading() as connection:
        found = await reports.failures(connection, question.tenant, request.task, after=request.after, most=MOST)
    kept = page(found)
    return FailuresAnswer(failures=kept, has_more=len(kept) < len(found) or len(found) == MOST)
