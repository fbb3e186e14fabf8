"""Reads jobs, their events and checkpoints through the caller's door."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence

from pydantic import JsonValue

from common.client_api.asking import Door, UnknownHere
from common.client_api.tenancy.files import Files
from common.client_api.training.progress import read_spec, read_status, read_steps, read_versions, step_pages
from common.messages import FILE_ID_PATTERN, AskEvents, AskTasks, EventsAnswer, TasksAnswer, TaskStatus
from common.messages.asks import MAX_NUMBER, cursor_after
from common.spec import TASK_ID_PATTERN
from gateway_svc.openai.errors import wrong_value
from gateway_svc.openai.jobs.job import (
    ENDED,
    Checkpoint,
    Job,
    JobEvent,
    Page,
    checkpoint_of,
    event_of,
    job_of,
    metadata_of,
    number_of_event,
    page_of,
    status_of,
    training_file_of,
)

MAX_SCANNED = 2000
"""Maximum tasks scanned for one page of a filtered list."""
MAX_CONCURRENT_FILES = 8
"""Maximum task files requested concurrently."""
Metadata = Mapping[str, str]


async def read_job(door: Door, status: TaskStatus) -> Job:
    """The job of a task. Raises: as `Door.ask`."""
    spec, tokens = await asyncio.gather(_spec(door, status.task), _trained_tokens(door, status))
    return job_of(status, spec, trained_tokens=tokens, rows=await _rows(door, [(status, spec)]))


async def list_jobs(door: Door, after: str | None, limit: int, metadata: Metadata | None) -> Page[Job]:
    """Page of jobs, newest first. `metadata`: entries to match; None: any job; empty: jobs without metadata. Raises: Problem."""
    found: list[tuple[TaskStatus, Mapping[str, JsonValue]]] = []
    async for status, spec in _tasks(door, await _cursor(door, after), limit + 1):
        if metadata is None or _has(metadata_of(spec), metadata):
            found.append((status, spec))
        if len(found) > limit:
            break
    tokens = await asyncio.gather(*(_trained_tokens(door, status) for status, _ in found))
    rows = await _rows(door, found)
    return page_of([job_of(status, spec, trained_tokens=of, rows=rows) for (status, spec), of in zip(found, tokens, strict=True)], limit)


async def list_events(door: Door, task: str, after: str | None, limit: int) -> Page[JobEvent]:
    """Page of events, newest first. Raises: Problem; as `Door.ask`."""
    before = None if after is None else number_of_event(after, task)
    if after is not None and before is None:
        raise wrong_value("after", "it is no event of this job")
    if before is None:
        before = (await door.ask("events", AskEvents(task=task, after=MAX_NUMBER), EventsAnswer)).last + 1
    begin, found = max(before - limit - 2, 0), list[JobEvent]()
    async for event in door.events_after(task, begin):
        if event.number is None or event.number >= before:
            break
        found.append(event_of(event))
    return page_of(found[::-1], limit)


async def list_checkpoints(door: Door, task: str, after: str | None, limit: int) -> Page[Checkpoint]:
    """Page of stored versions, latest first. Raises: Problem; as `Door.ask`."""
    versions = (await read_versions(door, task)).versions[::-1]
    if after is not None:
        places = [place for place, version in enumerate(versions) if f"{task}@{version.version}" == after]
        if not places:
            raise wrong_value("after", "it is no checkpoint of this job")
        versions = versions[places[0] + 1 :]
    kept = versions[: limit + 1]
    steps = {step.version: step for step in await read_steps(door, task, max(kept[-1].version - 1, 0))} if kept else {}
    return page_of([checkpoint_of(task, version, steps.get(version.version)) for version in kept], limit)


async def _tasks(door: Door, cursor: str | None, most: int) -> AsyncIterator[tuple[TaskStatus, Mapping[str, JsonValue]]]:
    """Yield tasks with their task files, newest first. Raises: Problem after MAX_SCANNED tasks."""
    scanned, places = 0, asyncio.Semaphore(MAX_CONCURRENT_FILES)

    async def with_spec(status: TaskStatus) -> tuple[TaskStatus, Mapping[str, JsonValue]]:
        async with places:
            return status, await _spec(door, status.task)

    while scanned < MAX_SCANNED:
        page = await door.ask("tasks", AskTasks(sort="created", descending=True, cursor=cursor, most=most), TasksAnswer)
        for found in await asyncio.gather(*map(with_spec, page.tasks)):
            yield found
        scanned, cursor = scanned + len(page.tasks), page.cursor
        if cursor is None:
            return
    raise wrong_value("metadata", f"{MAX_SCANNED} jobs were looked at; list from a later one on, with after")


async def _cursor(door: Door, after: str | None) -> str | None:
    """Cursor for the tasks after job `after`. Raises: Problem if there is no such job."""
    if after is None:
        return None
    if re.fullmatch(TASK_ID_PATTERN, after) is None:
        raise wrong_value("after", "there is no such job")
    try:
        return cursor_after(await read_status(door, after))
    except UnknownHere:
        raise wrong_value("after", "there is no such job") from None


async def _spec(door: Door, task: str) -> Mapping[str, JsonValue]:
    """The task file; empty if the task was deleted meanwhile."""
    try:
        return await read_spec(door, task)
    except UnknownHere:
        return {}


async def _rows(door: Door, jobs: Sequence[tuple[TaskStatus, Mapping[str, JsonValue]]]) -> dict[str, int]:
    """Number of rows by file id, for the existing files that jobs train on; each file is requested once."""
    files = {file: status.tenant for status, spec in jobs if re.fullmatch(FILE_ID_PATTERN, file := training_file_of(spec))}
    found = await asyncio.gather(*(Files(door).copies(file, tenant) for file, tenant in files.items()))
    return {one.file: one.rows for copies in found for one in copies[:1]}


async def _trained_tokens(door: Door, status: TaskStatus) -> int | None:
    """Trained tokens of an ended task, else None: the sum over its steps, since every role may read those."""
    if status_of(status) not in ENDED:
        return None
    return sum([step.trained_tokens or 0 async for page in step_pages(door, status.task) for step in page])


def _has(metadata: Metadata, wanted: Metadata) -> bool:
    return metadata.items() >= wanted.items() if wanted else not metadata
