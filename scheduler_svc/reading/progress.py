"""Answers about one task's progress: its spec, steps, evaluations, versions and samples, and the times of its steps."""

from typing import Any

from sqlalchemy import ColumnElement, Double, cast, extract, func, select, true
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.ext.asyncio import AsyncConnection

from common.formats.step_times import pack_steps
from common.messages import (
    AskEvaluations,
    AskSamples,
    AskSteps,
    AskTask,
    AskTasks,
    AskTimeline,
    AskVersions,
    EvaluationsAnswer,
    SamplesAnswer,
    SpecAnswer,
    StepsAnswer,
    TaskTimes,
    TimelineAnswer,
    VersionsAnswer,
    as_json,
)
from scheduler_svc.base.tables import steps
from scheduler_svc.reading.tasks import cursor_of, listing
from scheduler_svc.tenancy.question import Question, Unknown, page
from scheduler_svc.training.queries import versions as progress
from scheduler_svc.training.queries.versions import AskedTask

PAGE_SIZE = 200
"""Maximum steps or versions per page."""

EVALUATIONS_PAGE_SIZE = 20
"""Maximum evaluations per page: each is read prompt by prompt."""

TIMELINE_PAGE_SIZE = 8
"""Maximum tasks per page of the timeline: a page is full with so many tasks of 1,000 steps."""

AFTER_EVERY_NAME = "~"
"""Text that sorts after every protocol name."""

ENDS = (steps.c.last_scored_at, steps.c.batched_at, steps.c.started_at, steps.c.finished_at, steps.c.trained_at)


async def answer_spec(question: Question, request: AskTask) -> SpecAnswer:
    """The task's accepted spec and its submission's digest. Raises: Unknown."""
    async with question.reading() as connection:
        task = await _task(connection, question, request.task)
    return SpecAnswer(task=task.id, spec=as_json(task.spec), submission=task.submission)


async def answer_steps(question: Question, request: AskSteps) -> StepsAnswer:
    """A page of the task's steps. Raises: Unknown."""
    async with question.reading() as connection:
        task = await _task(connection, question, request.task)
        found = await progress.steps_after(connection, task.id, request.after, request.every, most=PAGE_SIZE)
    kept, has_more = page(found, PAGE_SIZE)
    return StepsAnswer(steps=kept, has_more=has_more)


async def answer_versions(question: Question, request: AskVersions) -> VersionsAnswer:
    """A page of the task's stored versions. Raises: Unknown."""
    async with question.reading() as connection:
        task = await _task(connection, question, request.task)
        stored = await progress.stored_versions(connection, task.id)
        best = await progress.best_of(connection, task, stored)
        found = await progress.versions_after(connection, task, request.after, best, most=PAGE_SIZE)
    kept, has_more = page(found, PAGE_SIZE)
    latest = task.version if task.version in stored else None
    return VersionsAnswer(versions=kept, best=best, latest=latest, has_more=has_more)


async def answer_evaluations(question: Question, request: AskEvaluations) -> EvaluationsAnswer:
    """A page of the task's finished evaluations. Raises: Unknown."""
    after = (request.version - 1, AFTER_EVERY_NAME) if request.protocol is None else (request.version, request.protocol)
    async with question.reading() as connection:
        task = await _task(connection, question, request.task)
        best = await progress.best_of(connection, task, await progress.stored_versions(connection, task.id))
        found = await progress.evaluations_after(connection, task, after, best, most=EVALUATIONS_PAGE_SIZE)
    kept, has_more = page(found, EVALUATIONS_PAGE_SIZE)
    return EvaluationsAnswer(evaluations=kept, has_more=has_more)


async def answer_timeline(question: Question, request: AskTimeline) -> TimelineAnswer:
    async with question.reading() as connection:
        found, cursors = await _step_times(connection, question.tenant, request, most=TIMELINE_PAGE_SIZE)
    kept, has_more = page(found, TIMELINE_PAGE_SIZE)
    return TimelineAnswer(tasks=[one for one in kept if one.steps], cursor=cursors[len(kept) - 1] if has_more else None)


async def answer_samples(question: Question, request: AskSamples) -> SamplesAnswer:
    """Samples of the requested or latest step. Raises: Unknown."""
    async with question.reading() as connection:
        task = await _task(connection, question, request.task)
    stored = question.sources.samples
    steps = await stored.steps(task.id)
    wanted = request.step if request.step is not None else max(steps, default=None)
    if wanted is None:
        return SamplesAnswer(task=task.id, steps=[], samples=None)
    found = await stored.of_step(task.spec.pool, task.id, wanted)
    if found is None or found.task != task.id:
        raise Unknown(f"task {task.id} has no samples of step {wanted}; steps with some: {_named(steps)}")
    return SamplesAnswer(task=task.id, steps=steps, samples=found)


def _named(steps: list[int]) -> str:
    return f"{', '.join(map(str, steps[:3]))} … {steps[-1]}" if len(steps) > 4 else ", ".join(map(str, steps)) or "none"


async def _task(connection: AsyncConnection, question: Question, task: str) -> AskedTask:
    """The question's task. Raises: Unknown."""
    if (found := await progress.asked_task(connection, question.tenant, task)) is None:
        raise question.unknown(task)
    return found


async def _step_times(
    connection: AsyncConnection, tenant: str | None, asked: AskTimeline, *, most: int
) -> tuple[list[TaskTimes], list[str]]:
    """Times of up to `most` tasks, newest first, including tasks without steps, and the cursor after each. Raises: Reject."""
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
