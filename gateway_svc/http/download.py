"""Downloads: parts of a blob as an answer, with Range and ETag."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from common.messages import AdapterRef
from gateway_svc.access import Caller
from gateway_svc.downloads import Span, Unsatisfiable, bytes_of, requested_span
from gateway_svc.problems import Problem


class Closing(StreamingResponse):
    """Closes its generator when the client has gone."""

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes], status: int, headers: dict[str, str], media_type: str) -> None:
        async def whole() -> AsyncGenerator[bytes]:
            yield first
            async for part in rest:
                yield part

        self._rest = rest
        super().__init__(whole(), status, headers, media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._rest):
            await super().__call__(scope, receive, send)


async def download(request: Request, caller: Caller, adapter: AdapterRef, file: Span, *, name: str, media_type: str) -> Response:
    """A file in the blob of an adapter, or the whole blob. Raises: Problem; ClientError; NoAnswer."""
    etag = f'"{adapter.blob.sha256}"' if file.size == adapter.blob.size_bytes else f'"{adapter.blob.sha256}-{file.first}"'
    headers = {"ETag": etag, "Accept-Ranges": "bytes", "Cache-Control": "private, immutable, max-age=31536000"}
    headers["Content-Disposition"] = f'attachment; filename="{name}"'
    if etag in [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=headers)
    condition = request.headers.get("if-range")
    try:
        span = requested_span(request.headers.get("range") if condition in (None, etag) else None, file.size)
    except Unsatisfiable:
        refusal = {"Content-Range": f"bytes */{file.size}"}
        raise Problem(416, "Range not satisfiable", f"it has {file.size} bytes", "range", headers=refusal) from None
    sent = file if span is None else Span(file.first + span.first, file.first + span.last)
    if span is not None:
        headers["Content-Range"] = f"bytes {span.first}-{span.last}/{file.size}"
    headers["Content-Length"] = str(sent.size)
    parts = bytes_of(caller.door, adapter, sent, is_checked=span is None)
    first = await anext(parts, b"")  # so that what is wrong at once is an answer of its own
    return Closing(first, parts, 200 if span is None else 206, headers, media_type)
