"""Downloads: parts of a blob as an answer, with Range and ETag."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from fastapi import Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from gateway_svc.problems import Problem
from gateway_svc.reading.downloads import Source, Span, Unsatisfiable, bytes_of, requested_span

TAR = "application/x-tar"


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


def adapter_headers(name: str) -> dict[str, str]:
    """Of a download of an adapter, or of a file of it: a version is never another one. `name`: of the file that a browser writes."""
    return {"Cache-Control": "private, immutable, max-age=31536000", "Content-Disposition": f'attachment; filename="{name}"'}


async def download(request: Request, source: Source, wanted: Span, headers: Mapping[str, str], *, media_type: str) -> Response:
    """A span of a blob, or the whole, as far as the request wants it. `headers`: of the answer. Raises: Problem; ClientError; NoAnswer."""
    etag = f'"{source.digest}"' if wanted.size == source.size_bytes else f'"{source.digest}-{wanted.first}"'
    answered = {**headers, "ETag": etag, "Accept-Ranges": "bytes"}
    if etag in [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=answered)
    condition = request.headers.get("if-range")
    try:
        span = requested_span(request.headers.get("range") if condition in (None, etag) else None, wanted.size)
    except Unsatisfiable:
        refusal = {"Content-Range": f"bytes */{wanted.size}"}
        raise Problem(416, "Range not satisfiable", f"it has {wanted.size} bytes", "range", headers=refusal) from None
    sent = wanted if span is None else Span(wanted.first + span.first, wanted.first + span.last)
    if span is not None:
        answered["Content-Range"] = f"bytes {span.first}-{span.last}/{wanted.size}"
    answered["Content-Length"] = str(sent.size)
    parts = bytes_of(source, sent, is_checked=span is None)
    first = await anext(parts, b"")  # so that an error before the first byte has a status of its own
    return Closing(first, parts, 200 if span is None else 206, answered, media_type)
