"""Scripts, styles and downloads."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from common.client_api.tenancy.tenants import Billing
from common.messages import AdapterAnswer, AskAdapter
from common.messages.asks import MAX_VERSION
from common.spec import TASK_ID_PATTERN
from gateway_svc.http.dashboard.route import PageRoute
from gateway_svc.http.dashboard.visitor import Filtered, Looking
from gateway_svc.http.download import TAR, adapter_headers, download
from gateway_svc.problems import not_found
from gateway_svc.reading.downloads import Span, adapter_source
from gateway_svc.web.assets import assets
from gateway_svc.web.views.usage import as_csv

TaskId = Annotated[str, Path(pattern=TASK_ID_PATTERN)]

router = APIRouter(route_class=PageRoute)


@router.get("/static/{digest}/{name}")
async def asset(digest: str, name: str) -> Response:
    found = assets().get(name)
    if found is None or found.digest != digest:
        raise not_found()
    headers = {"Cache-Control": "public, immutable, max-age=31536000", "Content-Type": found.media_type}
    return Response(found.content, headers=headers)


@router.get("/tasks/{task}/versions/{version}/adapter.tar")
async def adapter(visitor: Looking, request: Request, task: TaskId, version: Annotated[int, Path(ge=0, le=MAX_VERSION)]) -> Response:
    found = (await visitor.caller.door.ask("adapter", AskAdapter(task=task, version=version), AdapterAnswer)).adapter
    source = adapter_source(visitor.caller.door, found)
    return await download(request, source, Span(0, source.size_bytes - 1), adapter_headers(f"{task}-v{version}.tar"), media_type=TAR)


@router.get("/usage.csv")
async def usage_csv(visitor: Filtered) -> Response:
    visitor.check_question("invoice")
    content = as_csv(await Billing(visitor.caller.door).invoice())
    headers = {"Content-Disposition": 'attachment; filename="usage.csv"'}
    return Response(content, media_type="text/csv; charset=utf-8", headers=headers)
