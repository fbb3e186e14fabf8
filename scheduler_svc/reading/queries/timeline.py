"""Times of the latest steps of several tasks."""

from typing import Any

from sqlalchemy import ColumnElement, Double, cast, extract, func, select, true
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.ext.asyncio import AsyncConnection

from common.formats.step_times import pack_steps
from common.messages import AskTasks, AskTimeline, TaskTimes
from scheduler_svc.base.tables import steps
from scheduler_svc.reading.queries.listing import cursor_of, listing

ENDS = (steps.c.last_scored_at, steps.c.batched_at, steps.c.started_at, steps.c.finished_at, steps.c.trained_at)


async def step_times(
    connection: AsyncConnection, tenant: str | None, asked: AskTimeline, *, most: int
) -> tuple[list[TaskTimes], list[str]]:
    """At most so many tasks, the newest first, those without steps included, and the cursor after each. Raises: Reject."""
    chosen = listing(tenant, AskTasks(cursor=asked.cursor, sort="created", descending=True, most=most)).subquery()
    times = [_epoch(end - steps.c.first_admitted_at).label(f"end_{number}") for number, end in enumerate(ENDS)]
    latest = (
        select(steps.c.version, _epoch(steps.c.first_admitted_at).label("admitted_s"), *times)
        .where(steps.c.task == chosen.c.id)
        .order_by(steps.c.version.desc())
        .limit(asked.steps)
        .lateral()
    )
    columns = [func.array_agg(aggregate_order_by(column, latest.c.version)) for column in latest.c]
    statement = (
        select(chosen.c.id, chosen.c.key, *columns)
        .select_from(chosen.outerjoin(latest, true()))
        .group_by(chosen.c.id, chosen.c.key)
        .order_by(chosen.c.key.desc(), chosen.c.id.desc())
    )
    found, cursors = list[TaskTimes](), list[str]()
    for row in (await connection.execute(statement)).all():
        task, key, versions, admitted, *ends = tuple(row)
        has_steps = versions[0] is not None
        packed = pack_steps([version + 1 for version in versions], admitted, ends) if has_steps else b""
        found.append(TaskTimes(task=task, steps=packed))
        cursors.append(cursor_of("created", key, task))
    return found, cursors


def _epoch(time: ColumnElement[Any]) -> ColumnElement[float]:
    return cast(extract("epoch", time), Double)
