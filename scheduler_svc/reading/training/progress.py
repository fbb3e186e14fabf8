"""Answers about what one task has come to: its spec, steps, evaluations and versions."""

from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import (
    AskEvaluations,
    AskSteps,
    AskTask,
    AskTimeline,
    AskVersions,
    EvaluationsAnswer,
    SpecAnswer,
    StepsAnswer,
    TimelineAnswer,
    VersionsAnswer,
    as_json,
)
from scheduler_svc.reading.queries import timeline
from scheduler_svc.tenancy.question import Question, page
from scheduler_svc.training.queries import versions as progress
from scheduler_svc.training.queries.versions import AskedTask

MOST = 200
"""Maximum steps, and versions, of a page."""
MOST_EVALUATIONS = 20
"""Maximum evaluations of a page: each is read prompt by prompt."""
MOST_OF_TIMELINE = 8
"""Maximum tasks of a page of the timeline: of so many, 1,000 steps each fill it."""
AFTER_EVERY_NAME = "~"
"""Sorts above every name of a protocol."""


async def answer_spec(question: Question, request: AskTask) -> SpecAnswer:
    """Raises: Unknown."""
    async with question.reading() as connection:
        task = await _task(connection, question, request.task)
    return SpecAnswer(task=task.id, spec=as_json(task.spec), submission=task.submission)


async def answer_steps(question: Question, request: AskSteps) -> StepsAnswer:
    """Raises: Unknown."""
    async with question.reading() as connection:
        task = await _task(connection, question, request.task)
        found = await progress.steps_after(connection, task.id, request.after, request.every, most=MOST)
    kept = page(found)
    return StepsAnswer(steps=kept, has_more=len(kept) < len(found) or len(found) == MOST)


async def answer_versions(question: Question, request: AskVersions) -> VersionsAnswer:
    """Raises: Unknown."""
    async with question.reading() as connection:
        task = await _task(connection, question, request.task)
        stored = await progress.stored_versions(connection, task.id)
        best = await progress.best_of(connection, task, stored)
        found = await progress.versions_after(connection, task, request.after, best, most=MOST)
    kept = page(found)
    latest = task.version if task.version in stored else None
    return VersionsAnswer(versions=kept, best=best, latest=latest, has_more=len(kept) < len(found) or len(found) == MOST)


async def answer_evaluations(question: Question, request: AskEvaluations) -> EvaluationsAnswer:
    """Raises: Unknown."""
    after = (request.version - 1, AFTER_EVERY_NAME) if request.protocol is None else (request.version, request.protocol)
    async with question.reading() as connection:
        task = await _task(connection, question, request.task)
        best = await progress.best_of(connection, task, await progress.stored_versions(connection, task.id))
        found = await progress.evaluations_after(connection, task, after, best, most=MOST_EVALUATIONS)
    kept = page(found)
    return EvaluationsAnswer(evaluations=kept, has_more=len(kept) < len(found) or len(found) == MOST_EVALUATIONS)


async def answer_timeline(question: Question, request: AskTimeline) -> TimelineAnswer:
    async with question.reading() as connection:
        found, cursors = await timeline.step_times(connection, question.tenant, request, most=MOST_OF_TIMELINE)
    kept = page(found)
    has_more = len(kept) < len(found) or len(found) == MOST_OF_TIMELINE
    return TimelineAnswer(tasks=[one for one in kept if one.steps], cursor=cursors[len(kept) - 1] if has_more else None)


async def _task(connection: AsyncConnection, question: Question, task: str) -> AskedTask:
    """Raises: Unknown."""
    if (found := await progress.asked_task(connection, question.tenant, task)) is None:
        raise question.unknown(task)
    return found
