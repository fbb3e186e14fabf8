"""Reads what one task has come to."""

from collections.abc import AsyncGenerator

from pydantic import JsonValue

from common.client_api.pages import pages
from common.client_api.protocol import AnyDoor
from common.messages import (
    AskEvaluations,
    AskSamples,
    AskSteps,
    AskTask,
    AskTimeline,
    AskVersions,
    EvaluationOf,
    EvaluationsAnswer,
    SamplesAnswer,
    SpecAnswer,
    StatusAnswer,
    StepOf,
    StepsAnswer,
    TaskStatus,
    TaskTimes,
    TimelineAnswer,
    VersionsAnswer,
    WhyAnswer,
)


async def read_status(door: AnyDoor, task: str) -> TaskStatus:
    """Raises: as `Door.ask`, as everything here."""
    return (await door.ask("status", AskTask(task=task), StatusAnswer)).status


async def read_why(door: AnyDoor, task: str) -> WhyAnswer:
    """What the task waits for."""
    return await door.ask("why", AskTask(task=task), WhyAnswer)


async def read_spec(door: AnyDoor, task: str) -> dict[str, JsonValue]:
    """The task as it was accepted, completed by defaults."""
    return (await door.ask("spec", AskTask(task=task), SpecAnswer)).spec


async def read_samples(door: AnyDoor, task: str, step: int | None) -> SamplesAnswer:
    """Attempts that one step keeps. `step`: None for the latest with samples."""
    return await door.ask("samples", AskSamples(task=task, step=step), SamplesAnswer)


async def step_pages(door: AnyDoor, task: str, after: int = 0, every: int = 1) -> AsyncGenerator[list[StepOf]]:
    """Steps that made versions above `after`, a page at a time; `every`: as in `AskSteps`. Raises: as `Door.ask`."""

    def behind(page: StepsAnswer) -> dict[str, object] | None:
        return {"after": page.steps[-1].version} if page.has_more and page.steps else None

    async for page in pages(door, "steps", AskSteps(task=task, after=after, every=every), StepsAnswer, behind):
        yield page.steps


async def read_steps(door: AnyDoor, task: str, after: int = 0, every: int = 1) -> list[StepOf]:
    """Steps that made versions above `after`; `every`: as in `AskSteps`. Raises: as `Door.ask`."""
    return [step async for page in step_pages(door, task, after, every) for step in page]


async def read_versions(door: AnyDoor, task: str) -> VersionsAnswer:
    """Every stored version. Raises: as `Door.ask`."""

    def behind(page: VersionsAnswer) -> dict[str, object] | None:
        return {"after": page.versions[-1].version} if page.has_more and page.versions else None

    found = [page async for page in pages(door, "versions", AskVersions(task=task), VersionsAnswer, behind)]
    return found[-1].model_copy(update={"versions": [version for page in found for version in page.versions]})


async def read_evaluations(door: AnyDoor, task: str) -> list[EvaluationOf]:
    """Every finished evaluation. Raises: as `Door.ask`."""

    def behind(page: EvaluationsAnswer) -> dict[str, object] | None:
        last = page.evaluations[-1] if page.has_more and page.evaluations else None
        return None if last is None else {"version": last.version, "protocol": last.protocol}

    found = pages(door, "evaluations", AskEvaluations(task=task), EvaluationsAnswer, behind)
    return [evaluation async for page in found for evaluation in page.evaluations]


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
