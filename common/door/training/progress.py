"""Reads what one task has come to, page by page."""

from collections.abc import AsyncGenerator

from common.door.protocol import AnyDoor
from common.messages import (
    AskEvaluations,
    AskSteps,
    AskTimeline,
    AskVersions,
    EvaluationOf,
    EvaluationsAnswer,
    StepOf,
    StepsAnswer,
    TaskTimes,
    TimelineAnswer,
    VersionsAnswer,
)


async def step_pages(door: AnyDoor, task: str, after: int = 0) -> AsyncGenerator[list[StepOf]]:
    """Steps that made versions above `after`, a page at a time. Raises: as `Door.ask`."""
    while True:
        answer = await door.ask("steps", AskSteps(task=task, after=after), StepsAnswer)
        yield answer.steps
        if not answer.has_more or not answer.steps:
            return
        after = answer.steps[-1].version


async def read_steps(door: AnyDoor, task: str, after: int = 0) -> list[StepOf]:
    """Steps that made versions above `after`. Raises: as `Door.ask`."""
    return [step async for page in step_pages(door, task, after) for step in page]


async def read_versions(door: AnyDoor, task: str) -> VersionsAnswer:
    """Every stored version. Raises: as `Door.ask`."""
    answer = await door.ask("versions", AskVersions(task=task), VersionsAnswer)
    found = answer.versions
    while answer.has_more:
        answer = await door.ask("versions", AskVersions(task=task, after=found[-1].version), VersionsAnswer)
        found = [*found, *answer.versions]
    return answer.model_copy(update={"versions": found})


async def read_evaluations(door: AnyDoor, task: str) -> list[EvaluationOf]:
    """Every finished evaluation. Raises: as `Door.ask`."""
    found: list[EvaluationOf] = []
    while True:
        last = (found[-1].version, found[-1].protocol) if found else (0, None)
        answer = await door.ask("evaluations", AskEvaluations(task=task, version=last[0], protocol=last[1]), EvaluationsAnswer)
        found += answer.evaluations
        if not answer.has_more:
            return found


async def read_timeline(door: AnyDoor, cursor: str | None, *, tasks: int, steps: int) -> tuple[list[TaskTimes], str | None]:
    """Times of the latest steps of the newest tasks after `cursor` that have any, `tasks` of them or a few more, and the next cursor.

    Raises: as `Door.ask`.
    """
    found: list[TaskTimes] = []
    while True:
        answer = await door.ask("timeline", AskTimeline(cursor=cursor, steps=steps), TimelineAnswer)
        found, cursor = [*found, *answer.tasks], answer.cursor
        if cursor is None or len(found) >= tasks:
            return found, cursor
