"""OpenAI's routes of files."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException

from common.client_api.tenancy.files import Files
from common.messages import FILE_ID_PATTERN, MAX_FILE_BYTES, StoredFile
from common.spec import TASK_ID_PATTERN
from gateway_svc.access import Caller
from gateway_svc.http.download import Closing, Span, download, file_source
from gateway_svc.http.errors import Family
from gateway_svc.http.gateway import Acting, check_job, tenant_of
from gateway_svc.http.openai_family import OpenAIRoute, render, responses
from gateway_svc.http.routes.tasks import status_of
from gateway_svc.openai.errors import missing, unsupported, wrong_value
from gateway_svc.openai.files import PURPOSE, FileDeleted, FileObject, file_object, page_of_files, result_object, result_parts
from gateway_svc.openai.jobs.job import Page, task_of_result
from gateway_svc.problems import Problem, not_found, unavailable

PATH = "/v1/files"
MAX_PAGE = 10_000
FORM_BYTES = 64 * 1024
"""Maximum bytes of a form besides its file."""
MAX_FIELDS = 8
CHARSETS = (b"utf-8", b"utf8")
MEDIA_TYPE = "application/jsonl"
JSONL = {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}
FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "additionalProperties": False,
                    "properties": {"file": {"type": "string", "format": "binary"}, "purpose": {"type": "string", "enum": [PURPOSE]}},
                }
            }
        },
    }
}

router = APIRouter(prefix=PATH, tags=["files"], route_class=OpenAIRoute)
FAMILY = Family(router, render, (PATH,), {PATH: MAX_FILE_BYTES + FORM_BYTES})
FileId = Annotated[str, Path(max_length=100)]


@router.post("", responses=responses(FileObject, 400, 401, 403, 408, 413, 415, 429, 503), openapi_extra=FORM)
async def create_file(request: Request, caller: Acting) -> FileObject:
    """Upload rows: JSON objects with `messages`, one a line. Answered once they are checked; the same bytes are the same file."""
    async with uploaded(request, caller) as form:
        return file_object(await store_file(caller, form))


async def store_file(caller: Caller, form: dict[str, UploadFile | str]) -> StoredFile:
    """Store the file of an uploaded form. Raises: Problem; ClientError; NoAnswer."""
    file, name = _file_of(form)
    return await Files(caller.door).upload(file.file, name, tenant_of(caller))


@asynccontextmanager
async def uploaded(request: Request, caller: Caller) -> AsyncGenerator[dict[str, UploadFile | str]]:
    """Yield the fields of an upload form. Raises: Problem, also for errors of reading the file."""
    check_job(caller, "upload-file")
    tenant_of(caller)
    _check_form(request.headers.get("content-type", ""))
    try:
        async with request.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=FORM_BYTES) as form:
            yield dict(form.multi_items())
    except TimeoutError:  # a subclass of OSError
        raise Problem(408, "Request timeout", "the file was not taken in time; send it again", "too_slow") from None
    except OSError as error:  # the form's file is on disk, however small
        raise unavailable(f"this replica has no room for the file: {error.strerror}") from None
    except HTTPException as error:
        if isinstance(error.__cause__, MultiPartException) or error.status_code == 400:
            raise wrong_value("", f"the form cannot be read: {error.detail}") from None
        raise


@router.get("", responses=responses(Page[FileObject], 400, 401, 403, 429, 503))
async def list_files(
    caller: Acting,
    after: Annotated[str | None, Query(max_length=100)] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = MAX_PAGE,
    order: Literal["asc", "desc"] = "desc",
    purpose: Annotated[str | None, Query(max_length=64)] = None,
) -> Page[FileObject]:
    """Uploaded files. Results of jobs are not listed; jobs name them."""
    found = await Files(caller.door).all() if purpose in (None, PURPOSE) else []
    return page_of_files(found, after, limit, newest_first=order == "desc")


@router.get("/{file}", responses=responses(FileObject, 400, 401, 403, 404, 429, 503))
async def retrieve_file(caller: Acting, file: FileId) -> FileObject:
    """What a file is, and whether its rows can be used."""
    if (task := task_of_result(file)) is not None:
        status = await status_of(caller, _checked_task(task))
        return await result_object(caller.door, status)
    return file_object(await _found(caller, file))


@router.get(
    "/{file}/content",
    response_class=Response,
    responses={
        **responses(FileObject, 400, 401, 403, 404, 409, 416, 429, 503),
        200: {"description": "The file; ETag has its digest."} | JSONL,
        206: {"description": "The range that was requested."} | JSONL,
        304: {"description": "The client has it."},
    },
)
async def read_file_content(request: Request, caller: Acting, file: FileId) -> Response:
    """Download the uploaded file, or a byte range of it; for a job's result, the job's steps, without ranges."""
    if (task := task_of_result(file)) is not None:
        status = await status_of(caller, _checked_task(task))
        parts = result_parts(caller.door, status.task)
        first = await anext(parts, b"")  # fetched first, so that an early error gets its own status
        return Closing(first, parts, 200, {}, MEDIA_TYPE)
    found = await _found(caller, file)
    if found.state != "usable":
        raise Problem(409, "Wrong state", f"the file is {found.state}: {found.reason}".removesuffix(": "), "wrong_state")
    whole = Span(0, found.size_bytes - 1)
    return await download(request, file_source(caller.door, found), whole, {"Cache-Control": "private"}, media_type=MEDIA_TYPE)


@router.delete("/{file}", responses=responses(FileDeleted, 400, 401, 403, 404, 409, 429, 503))
async def delete_file(caller: Acting, file: FileId) -> FileDeleted:
    """Delete a file. Tasks that use it must have ended."""
    check_job(caller, "delete-package")
    if task_of_result(file) is not None:
        raise unsupported("file", "a result goes with its task: DELETE /v1/tasks/{task}")
    found = await _copy_to_delete(caller, file)
    if found.live_tasks:
        raise Problem(409, "Wrong state", f"{found.live_tasks} tasks that have not ended use it; cancel them first", "file_in_use")
    await Files(caller.door).delete(found)
    return FileDeleted(id=found.file)


async def _found(caller: Caller, file: str) -> StoredFile:
    """The caller's file. Raises: Problem, the same for a missing file and another tenant's."""
    return await Files(caller.door).find(_checked_id(file), caller.tenant)


async def _copy_to_delete(caller: Caller, file: str) -> StoredFile:
    """The file to delete. Raises: Problem if it is missing, or several tenants have it and an admin named none."""
    copies = await Files(caller.door).copies(_checked_id(file), caller.tenant)
    if not copies:
        raise not_found()
    if len(copies) > 1:
        raise Problem(400, "Invalid request", "several tenants have this file: name one, with ?tenant=NAME", "tenant_required")
    return copies[0]


def _checked_id(file: str) -> str:
    if re.fullmatch(FILE_ID_PATTERN, file) is None:
        raise not_found()
    return file


def _checked_task(task: str) -> str:
    if re.fullmatch(TASK_ID_PATTERN, task) is None:
        raise not_found()
    return task


def _check_form(content_type: str) -> None:
    """Raises: Problem for a body that is not a multipart form in UTF-8: answers could not repeat names in other character sets."""
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        raise Problem(415, "Unsupported media type", "send multipart/form-data", "unsupported_media_type")
    if options.get(b"charset", b"utf-8").lower() not in CHARSETS:
        raise Problem(415, "Unsupported media type", "send the form in UTF-8", "unsupported_media_type")


def _file_of(form: dict[str, UploadFile | str]) -> tuple[UploadFile, str]:
    """The file of a form and its name. Raises: Problem for missing, wrong or unsupported fields."""
    for field in form:
        if field not in ("file", "purpose"):
            raise unsupported(
                field[:60], "files stay until they are deleted" if field.startswith("expires_after") else "there is no such field here"
            )
    file, purpose = form.get("file"), form.get("purpose")
    if purpose is None:
        raise missing("purpose")
    if purpose != PURPOSE:
        raise unsupported("purpose", f"files are for '{PURPOSE}'")
    if not isinstance(file, UploadFile):
        raise missing("file", "a file with a name is required")
    name = "".join(char for char in file.filename or "" if char.isprintable())[:255].strip()
    return file, name or "file.jsonl"
