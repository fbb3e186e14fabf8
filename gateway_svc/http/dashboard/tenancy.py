"""A tenant's files, webhooks and keys. Changes go through the functions of the API's routes, which check roles and names."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import ValidationError
from starlette.datastructures import UploadFile

from common.client_api.tenancy.files import Files
from common.client_api.tenancy.webhooks import Webhooks
from common.messages import WEBHOOK_EVENTS, WebhookEvent
from common.messages.asks import MAX_VERSION
from gateway_svc.http.dashboard.visitor import Filtered, Form, PageRoute, Visitor, check_token
from gateway_svc.http.errors import as_problem
from gateway_svc.http.gateway import check_question
from gateway_svc.http.guard import check_site
from gateway_svc.http.routes import files, webhooks
from gateway_svc.openai.files import PURPOSE
from gateway_svc.problems import Problem, wrong_fields_of
from gateway_svc.web.reading import read_access
from gateway_svc.web.views.charts import paged

UPLOAD = "/upload"
FileId = Annotated[str, Path(max_length=100)]
WebhookName = Annotated[str, Path(max_length=200)]

router = APIRouter(route_class=PageRoute)


@router.get("/files")
async def list_files(visitor: Filtered, page: Annotated[int, Query(ge=1, le=MAX_VERSION)] = 1) -> Response:
    return await _files(visitor, page=page)


@router.post(UPLOAD)
async def upload_file(visitor: Filtered) -> Response:
    check_site(visitor.request.headers)
    try:
        async with files.uploaded(visitor.request, visitor.caller) as form:
            fields: dict[str, UploadFile | str] = check_token(form, visitor.sessions, visitor.cookie)
            await files.store_file(visitor.caller, {"purpose": PURPOSE, **fields})
    except Exception as error:
        problem = _mistake(error)
        return await _files(visitor, error=problem.detail, status=problem.status)
    return visitor.done("/files", "uploaded")


@router.get("/files/{file}/content")
async def file_content(visitor: Filtered, file: FileId) -> Response:
    answer = await files.read_file_content(visitor.request, visitor.caller, file)
    answer.headers["Content-Disposition"] = f'attachment; filename="{file}.jsonl"'
    return answer


@router.post("/files/{file}/delete")
async def delete_file(visitor: Filtered, form: Form, file: FileId) -> Response:  # noqa: ARG001  checked
    await files.delete_file(visitor.caller, file)
    return visitor.done("/files", "file-deleted")


@router.get("/webhooks")
async def list_webhooks(visitor: Filtered) -> Response:
    return await _webhooks(visitor, {f"event.{event}": "on" for event in WEBHOOK_EVENTS})


@router.post("/webhooks")
async def set_webhook(visitor: Filtered, form: Form) -> Response:
    """Set a webhook and render the page, since a new secret is shown only once."""
    events: list[WebhookEvent] = [event for event in WEBHOOK_EVENTS if f"event.{event}" in form]
    try:
        target = webhooks.WebhookTarget(url=form.get("url", "").strip(), events=events, new_secret="new_secret" in form)
        made = await webhooks.put_webhook(visitor.caller, form.get("name", "").strip(), target)
    except Exception as error:
        problem = _mistake(error)
        return await _webhooks(visitor, form, error=problem.detail, status=problem.status)
    return await _webhooks(visitor, form, made=made)


@router.post("/webhooks/{name}/delete")
async def delete_webhook(visitor: Filtered, form: Form, name: WebhookName) -> Response:  # noqa: ARG001  checked
    await webhooks.remove_webhook(visitor.caller, name)
    return visitor.done("/webhooks", "webhook-deleted")


@router.get("/keys")
async def list_keys(visitor: Filtered) -> Response:
    check_question(visitor.caller, "access")
    return visitor.page("keys", tenants=await read_access(visitor.caller.door))


async def _files(visitor: Visitor, *, page: int = 1, error: str = "", status: int = 200) -> Response:
    found = await Files(visitor.caller.door).all()
    return visitor.page("files", files=paged(found[::-1], page), error=error, status=status)


async def _webhooks(
    visitor: Visitor, form: dict[str, str], *, made: webhooks.SetWebhookAnswer | None = None, error: str = "", status: int = 200
) -> Response:
    check_question(visitor.caller, "webhooks")
    found = await Webhooks(visitor.caller.door).all()
    return visitor.page("webhooks", webhooks=found, form=form, made=made, events=WEBHOOK_EVENTS, error=error, status=status)


def _mistake(error: Exception) -> Problem:
    """Problem to show above the form. Raises: `error`, if the user cannot correct it."""
    problem = wrong_fields_of(error.errors()) if isinstance(error, ValidationError) else as_problem(error)
    if problem is None or problem.status != 400:
        raise error
    return problem
