"""OpenAI's files: a tenant's uploaded rows, and the results of jobs, one line per step."""

from collections.abc import AsyncGenerator, Sequence
from typing import Literal

from pydantic import BaseModel

from common.client_api.asking import Door
from common.client_api.training.progress import step_pages
from common.formats.strict_json import on_one_line
from common.messages import StoredFile, TaskStatus
from gateway_svc.openai.errors import wrong_value
from gateway_svc.openai.jobs.job import Page, page_of, result_id

PURPOSE = "fine-tune"
STATUSES: dict[str, Literal["uploaded", "processed", "error"]] = {"usable": "processed", "refused": "error"}
"""State of a file → status; other states are `uploaded`."""


class FileDetails(BaseModel):
    """Fields of a file that OpenAI's shape lacks."""

    number: int
    """Order in which files were uploaded."""
    tenant: str
    state: str
    """`uploading`: parts are missing; `usable`; `refused`; `deleting`."""
    rows: int
    """Number of rows; 0 until the file is usable."""
    kept_bytes: int
    """Bytes of the parts that have arrived."""
    uploaded_at: float
    """Unix time at which the first part of the file was uploaded."""
    live_tasks: int
    """Number of tasks that use the file and have not ended."""

    @classmethod
    def of(cls, file: StoredFile) -> "FileDetails":
        same = file.model_dump(include={"number", "tenant", "state", "rows", "kept_bytes", "live_tasks"})
        return cls(**same, uploaded_at=file.uploaded_s)


class FileObject(BaseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["fine-tune", "fine-tune-results"]
    status: Literal["uploaded", "processed", "error"]
    status_details: str | None = None
    """Reason why the file's rows are refused."""
    expires_at: None = None
    marlaas: FileDetails | None = None
    """Further fields of an uploaded file; None for a job's result."""


class FileDeleted(BaseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


def file_object(file: StoredFile) -> FileObject:
    return FileObject(
        id=file.file,
        bytes=file.size_bytes,
        created_at=int(file.uploaded_s),
        filename=file.name,
        purpose=PURPOSE,
        status=STATUSES.get(file.state, "uploaded"),
        status_details=file.reason or None,
        marlaas=FileDetails.of(file),
    )


def page_of_files(files: Sequence[StoredFile], after: str | None, limit: int, *, newest_first: bool) -> Page[FileObject]:
    """A page of files after the file `after`. Raises: Problem if there is no such file."""
    found = sorted(files, key=lambda one: one.number, reverse=newest_first)
    if after is not None:
        places = [place for place, one in enumerate(found) if one.file == after]
        if not places:
            raise wrong_value("after", "there is no such file")
        found = found[places[0] + 1 :]
    return page_of([file_object(one) for one in found[: limit + 1]], limit)


async def result_parts(door: Door, task: str) -> AsyncGenerator[bytes]:
    """Yield every step of the task as a line of JSON, oldest first. Raises: as `Door.ask`."""
    async for page in step_pages(door, task):
        yield "".join(f"{on_one_line(step.model_dump_json())}\n" for step in page).encode()


async def result_object(door: Door, status: TaskStatus) -> FileObject:
    """Object of a job's result file. To count its bytes, every page of steps is read. Raises: as `Door.ask`."""
    size = 0
    async for part in result_parts(door, status.task):
        size += len(part)
    return FileObject(
        id=result_id(status.task),
        bytes=size,
        created_at=int(status.updated_s),
        filename=f"{status.task}.steps.jsonl",
        purpose="fine-tune-results",
        status="processed",
    )
