"""Downloads a blob in parts as an answer with Range and ETag; the digest is checked before the last byte is sent."""

import asyncio
import hashlib
import re
import tarfile
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from fastapi import Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from common.client_api.asking import Door
from common.client_api.errors import ClientError
from common.client_api.tenancy.files import fetch_file_part
from common.client_api.training.download import fetch_part
from common.messages import AdapterRef, StoredFile
from common.messages.asks import CHUNK_BYTES
from gateway_svc.problems import Problem

AHEAD = 4
"""Maximum parts fetched concurrently, which bounds the memory of a download."""
BLOCK = tarfile.BLOCKSIZE
MAX_FILES = 100
_RANGE = re.compile(r"^bytes=(\d*)-(\d*)$")
TAR = "application/x-tar"


class Unsatisfiable(Exception):
    """A range that begins after the end."""


@dataclass(frozen=True)
class Span:
    """Byte range from `first` to `last`, both inclusive."""

    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


def requested_span(header: str | None, size: int) -> Span | None:
    """The requested byte range; None for the whole, also if the header is unsupported. Raises: Unsatisfiable."""
    found = _RANGE.match(header.strip()) if header else None
    if found is None or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if len(first) > 18 or len(last) > 18:
        raise Unsatisfiable
    span = Span(int(first), min(int(last or size), size - 1)) if first else Span(max(size - int(last), 0), size - 1)
    if first and last and int(last) < int(first):
        return None
    if span.size <= 0:
        raise Unsatisfiable
    return span


@dataclass(frozen=True)
class Source:
    """A stored blob, read in parts."""

    name: str
    size_bytes: int
    digest: str
    """SHA-256, in hexadecimal digits."""
    part: Callable[[int], Awaitable[bytes]]
    """Fetches the part at an offset, a multiple of CHUNK_BYTES. Raises: ClientError if it has the wrong size; NoAnswer."""


def adapter_source(door: Door, adapter: AdapterRef) -> Source:
    """Source of an adapter's tar."""
    return Source(adapter.name, adapter.blob.size_bytes, adapter.blob.sha256, partial(fetch_part, door, adapter.task, adapter))


def file_source(door: Door, file: StoredFile) -> Source:
    """Source of a tenant's file."""
    return Source(file.file, file.size_bytes, file.digest, partial(fetch_file_part, door, file))


async def bytes_of(source: Source, sent: Span, *, is_checked: bool) -> AsyncGenerator[bytes]:
    """Yield the bytes of a span. Raises: ClientError; NoAnswer.

    `is_checked`: read the whole blob, and hold back the last bytes of the span until the digest is verified.
    """
    digest, held = hashlib.sha256(), b""
    async with aclosing(_parts(source, Span(0, source.size_bytes - 1) if is_checked else sent)) as parts:
        async for offset, data in parts:
            if is_checked:
                digest.update(data)
            if piece := data[max(sent.first - offset, 0) : max(sent.last + 1 - offset, 0)]:
                if held:
                    yield held
                held = piece
    if is_checked and digest.hexdigest() != source.digest:
        raise ClientError(f"{source.name} did not arrive as it is stored; fetch it again")
    yield held


async def files_of(adapter: Source) -> dict[str, Span]:
    """Files in an adapter's blob, an uncompressed tar, by name; only its headers are read. Raises: ClientError; NoAnswer."""
    found, offset = dict[str, Span](), 0
    while offset + BLOCK <= adapter.size_bytes and len(found) < MAX_FILES:
        header = b"".join([part async for part in bytes_of(adapter, Span(offset, offset + BLOCK - 1), is_checked=False)])
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeError):  # the zero blocks at the end
            return found
        offset += BLOCK
        if info.isreg() and info.size > 0:
            found[info.name] = Span(offset, offset + info.size - 1)
        offset += -(-info.size // BLOCK) * BLOCK
    return found


async def _parts(source: Source, wanted: Span) -> AsyncGenerator[tuple[int, bytes]]:
    """Yield (offset, bytes) of whole parts in order. Raises: as `Source.part`."""

    async def fetch(offset: int) -> tuple[int, bytes]:
        return offset, await source.part(offset)

    offsets = iter(range(wanted.first // CHUNK_BYTES * CHUNK_BYTES, wanted.last + 1, CHUNK_BYTES))
    pending = deque[asyncio.Task[tuple[int, bytes]]]()
    try:
        while True:
            while len(pending) < AHEAD and (offset := next(offsets, None)) is not None:
                pending.append(asyncio.create_task(fetch(offset)))
            if not pending:
                return
            yield await pending.popleft()
    finally:
        for one in pending:
            one.cancel()


class Closing(StreamingResponse):
    """Streaming answer that closes its generator when the client disconnects."""

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
    """Headers of an adapter download, which never changes. `name`: file name suggested to browsers."""
    return {"Cache-Control": "private, immutable, max-age=31536000", "Content-Disposition": f'attachment; filename="{name}"'}


async def download(request: Request, source: Source, wanted: Span, headers: Mapping[str, str], *, media_type: str) -> Response:
    """Answer with a span of a blob, reduced to the requested range. `headers`: to add. Raises: Problem; ClientError; NoAnswer."""
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
    first = await anext(parts, b"")  # fetched first, so that an early error gets its own status
    return Closing(first, parts, 200 if span is None else 206, answered, media_type)
