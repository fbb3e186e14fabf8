"""A tenant's file in OpenAI's shape."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from common.messages import StoredFile
from gateway_svc.openai.errors import wrong_value
from gateway_svc.openai.jobs.paging import Page, page_of

PURPOSE = "fine-tune"
STATUSES: dict[str, Literal["uploaded", "processed", "error"]] = {"usable": "processed", "refused": "error"}
"""State of a file → status; others are `uploaded`."""


class FileDetails(BaseModel):
    """What OpenAI's shape has no place for."""

    number: int
    """Order in which files were uploaded."""
    tenant: str
    state: str
    """`uploading`: parts are missing; `usable`; `refused`; `deleting`."""
    rows: int
    """0 until it is usable."""
    kept_bytes: int
    """Bytes of the parts that have arrived."""
    uploaded_at: float
    """Unix time of its first part."""
    live_tasks: int
    """Tasks that use it and have not ended."""

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
    """Why its rows are refused."""
    expires_at: None = None
    marlaas: FileDetails | None = None
    """Of an uploaded file."""


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
    """Raises: Problem where `after` is no file."""
    found = sorted(files, key=lambda one: one.number, reverse=newest_first)
    if after is not None:
        places = [place for place, one in enumerate(found) if one.file == after]
        if not places:
            raise wrong_value("after", "there is no such file")
        found = found[places[0] + 1 :]
    return page_of([file_object(one) for one in found[: limit + 1]], limit)
