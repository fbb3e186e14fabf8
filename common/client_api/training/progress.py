"""Reads the progress of one task, and dead letters."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from pydantic import JsonValue

from common.client_api.errors import ClientError
from common.client_api.protocol import AnyDoor, after_last, pages
from common.messages import (
    AskEvaluations,
    AskFailures,
    AskSamples,
    AskSteps,
    AskTask,
    AskTimeline,
    AskVersions,
    EvaluationOf,
    EvaluationsAnswer,
    FailedMessage,
    FailuresAnswer,
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
    """Status of a task. Raises: as `Door.ask`, like every function here."""
    return (await door.ask("status", AskTask(task=task), StatusAnswer)).status


async def read_why(door: AnyDoor, task: str) -> WhyAnswer:
    """Reasons why the task waits."""
    return await door.ask("why", AskTask(task=task), WhyAnswer)


async def read_spec(door: AnyDoor, task: str) -> dict[str, JsonValue]:
    """The task as accepted, with defaults filled in."""
    return (await door.ask("spec", AskTask(task=task), SpecAnswer)).spec


async def read_samples(door: AnyDoor, task: str, step: int | None) -> SamplesAnswer:
    """Attempts stored for one step. `step`: None for the latest step with samples."""
    return await door.ask("samples", AskSamples(task=task, step=step), SamplesAnswer)


async def step_pages(door: AnyDoor, task: str, after: int = 0, every: int = 1) -> AsyncGenerator[list[StepOf]]:
    """Steps that made versions above `after`, one page at a time; `every`: as in `AskSteps`. Raises: as `Door.ask`."""
    wanted = AskSteps(task=task, after=after, every=every)
    async for page in pages(door, "steps", wanted, StepsAnswer, lambda page: after_last(page, [one.version for one in page.steps])):
        yield page.steps


async def read_steps(door: AnyDoor, task: str, after: int = 0, every: int = 1) -> list[StepOf]:
    """Steps that made versions above `after`; `every`: as in `AskSteps`. Raises: as `Door.ask`."""
    return [step async for page in step_pages(door, task, after, every) for step in page]


async def read_versions(door: AnyDoor, task: str) -> VersionsAnswer:
    """Every stored version. Raises: as `Door.ask`."""
    answers = pages(
        door, "versions", AskVersions(task=task), VersionsAnswer, lambda page: after_last(page, [one.version for one in page.versions])
    )
    found = [page async for page in answers]
    return found[-1].model_copy(update={"versions": [version for page in found for version in page.versions]})


async def read_evaluations(door: AnyDoor, task: str) -> list[EvaluationOf]:
    """Every finished evaluation. Raises: as `Door.ask`."""

    def behind(page: EvaluationsAnswer) -> dict[str, object] | None:
        last = page.evaluations[-1] if page.has_more and page.evaluations else None
        return None if last is None else {"version": last.version, "protocol": last.protocol}

    found = pages(door, "evaluations", AskEvaluations(task=task), EvaluationsAnswer, behind)
    return [evaluation async for page in found for evaluation in page.evaluations]


async def read_timeline(door: AnyDoor, cursor: str | None, *, tasks: int, steps: int) -> tuple[list[TaskTimes], str | None]:
    """Times of the newest tasks after `cursor` (None: of all tasks), and the next cursor (None after the last task). Tasks without steps
    are skipped. `tasks`: minimum number of tasks, if there are as many. `steps`: as in AskTimeline.

    Raises: as `Door.ask`.
    """
    found: list[TaskTimes] = []
    while True:
        answer = await door.ask("timeline", AskTimeline(cursor=cursor, steps=steps), TimelineAnswer)
        found, cursor = [*found, *answer.tasks], answer.cursor
        if cursor is None or len(found) >= tasks:
            return found, cursor


@dataclass(frozen=True)
class Failure:
    """One dead letter: a message that could not be handled."""

    letter: int
    """Number of the letter, for `resend`."""
    task: str | None
    """None for a job that could not be read."""
    stage: str
    subject: str
    reason: str
    attempts: int
    tenant: str | None = None
    """None if the letter names neither an existing task nor a job."""

    @property
    def sender(self) -> str:
        """Tenant of the letter's task, or of a job that could not be read. Raises: ClientError if the letter names neither."""
        if self.tenant is None:
            raise ClientError(f"letter {self.letter} is about no task and no job: '{self.subject}'")
        return self.tenant


async def read_failures(door: AnyDoor, task: str | None) -> list[Failure]:
    """Dead letters of one task, or of all, oldest first. Raises: ClientError; NoAnswer."""
    found = pages(
        door, "failures", AskFailures(task=task), FailuresAnswer, lambda page: after_last(page, [one.letter for one in page.failures])
    )
    return [_failure(one) async for page in found for one in page.failures]


async def read_failure(door: AnyDoor, letter: int) -> Failure:
    """Dead letter with this number. Raises: ClientError if it does not exist; NoAnswer."""
    page = await door.ask("failures", AskFailures(after=letter - 1), FailuresAnswer) if letter > 0 else None
    if page is None or not page.failures or page.failures[0].letter != letter:
        raise ClientError(f"there is no dead letter {letter}; `marlaas failures` lists those there are")
    return _failure(page.failures[0])


def _failure(one: FailedMessage) -> Failure:
    return Failure(one.letter, one.task, one.stage, one.subject, one.reason, one.attempts, one.tenant)
