"""Versions of a task's adapter, and their files."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from common.client_api.asking import UnknownHere
from common.formats.wrong_values import described
from common.messages import AdapterAnswer, AdapterRef, AskAdapter, AskVersions, VersionsAnswer
from common.messages.asks import MAX_VERSION
from gateway_svc.access import Caller
from gateway_svc.http.download import TAR, Span, adapter_headers, adapter_source, download, files_of
from gateway_svc.http.errors import Family, responses
from gateway_svc.http.gateway import Acting
from gateway_svc.http.routes.records import AfterVersion
from gateway_svc.http.routes.tasks import TaskId, status_of
from gateway_svc.http.strict import StrictRoute
from gateway_svc.problems import not_found

router = APIRouter(prefix="/v1/tasks/{task}/versions", tags=["versions"], route_class=StrictRoute)
FAMILY = Family(router)

COMMON = responses(400, 401, 403, 404, 429, 503)
BINARY, JSON = "application/octet-stream", "application/json"


def _download(*media_types: str) -> dict[int | str, dict[str, Any]]:
    """OpenAPI responses for a file of one of these media types."""
    content = {"content": {media_type: {"schema": {"type": "string", "format": "binary"}} for media_type in media_types}}
    return {
        200: {"description": "The whole file; ETag has the digest."} | content,
        206: {"description": "The range that was requested."} | content,
        304: {"description": "The client has it."},
        **COMMON,
        **responses(416),
    }


VERSION = described(r"^(0|[1-9][0-9]{0,9}|latest|best)$", "a number, latest or best")
Version = Annotated[str, Path(pattern=VERSION, description="A number, `latest` or `best`.")]


@router.get("", responses=COMMON)
async def list_versions(
    caller: Acting,
    task: TaskId,
    after: AfterVersion = 0,
) -> VersionsAnswer:
    """List stored versions, paginated; the latest and the best."""
    await status_of(caller, task)
    return await caller.door.ask("versions", AskVersions(task=task, after=after), VersionsAnswer)


@router.get("/{version}", responses=COMMON)
async def read_version(caller: Acting, task: TaskId, version: Version) -> AdapterRef:
    """Read rank, size and digest of a version's adapter."""
    return await _adapter(caller, task, version)


@router.get("/{version}/adapter.tar", response_class=Response, responses=_download(TAR))
async def read_adapter(request: Request, caller: Acting, task: TaskId, version: Version) -> Response:
    """Download a version's adapter: a tar of a PEFT folder."""
    adapter = await _adapter(caller, task, version)
    whole = Span(0, adapter.blob.size_bytes - 1)
    return await download(request, adapter_source(caller.door, adapter), whole, adapter_headers(f"{adapter.name}.tar"), media_type=TAR)


@router.get("/{version}/files/{name:path}", response_class=Response, responses=_download(JSON, BINARY))
async def read_adapter_file(
    request: Request, caller: Acting, task: TaskId, version: Version, name: Annotated[str, Path(max_length=255)]
) -> Response:
    """Download one file of an adapter, such as `adapter_config.json`."""
    adapter = await _adapter(caller, task, version)
    source = adapter_source(caller.door, adapter)
    file = (await files_of(source)).get(name)
    if file is None:
        raise not_found()
    shown = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in name.rpartition("/")[2])
    media_type = JSON if name.endswith(".json") else BINARY
    return await download(request, source, file, adapter_headers(shown), media_type=media_type)


async def _adapter(caller: Caller, task: str, version: str) -> AdapterRef:
    """Adapter of a version. Raises: Problem, which lists the existing versions."""
    await status_of(caller, task)
    number: int | None = None
    if version == "best":
        number = (await caller.door.ask("versions", AskVersions(task=task), VersionsAnswer)).best
        if number is None:
            raise not_found()
    elif version != "latest":
        number = int(version)
        if number > MAX_VERSION:
            raise not_found()
    try:
        return (await caller.door.ask("adapter", AskAdapter(task=task, version=number), AdapterAnswer)).adapter
    except UnknownHere as error:
        raise not_found(str(error)) from None
