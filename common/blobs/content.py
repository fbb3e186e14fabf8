"""A blob's content on its way out of the store: its chunks, bounds on its time and size, its digest, and what a failure means.

nats-py's own `get` follows the stream with a consumer. That needs more permissions, stops between megabytes for flow control, and keeps
all that has arrived in memory. Here each chunk is the answer to one request, and the next is requested while one is written.
"""

import asyncio
import hashlib
import shutil
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import ObjectInfo, RawStreamMsg
from nats.js.errors import BadObjectMetaError, NotFoundError, ObjectNotFoundError

from common.blobs.archive import unpack
from common.errors import Reject, Unavailable
from common.messages import BlobRef
from common.streams import BLOBS_BUCKET

STREAM_NAME = f"OBJ_{BLOBS_BUCKET}"
"""Stream behind the bucket."""
SMALL_BYTES = 1024 * 1024
"""Maximum size of a chunk that is hashed and written between two turns of the event loop: a thread costs more."""
FETCH_TIMEOUT_S = 120.0
"""Minimum timeout (`fetch_timeout_s`)."""
MIN_BYTES_PER_S = 1024 * 1024
"""Minimum rate at which a blob is fetched before it times out."""


@contextmanager
def fetching(name: str) -> Generator[None]:
    """Raises: Reject when the blob is not in the store, or damaged there; Unavailable for the store's other errors, and the disk's."""
    try:
        yield
    except BadObjectMetaError:
        raise Reject(f"blob {name}: the store's copy is damaged") from None
    except (ObjectNotFoundError, NotFoundError):
        raise Reject(f"blob {name} is not in the store") from None
    except (TimeoutError, NatsError, OSError) as error:
        raise Unavailable(f"could not fetch blob {name}: {error}") from None


async def read_into(js: JetStreamContext, ref: BlobRef, info: ObjectInfo, file: IO[bytes]) -> None:
    """Write the blob's chunks to `file`. `info`: its entry in the store. `js`: waits as long for an answer as a chunk may take.

    Raises: Reject when it is not whole, or larger than `ref` says, or has another digest; the store's errors; OSError.
    """
    digest, size, chunk, sequence = hashlib.sha256(), 0, b"", 1

    def put() -> None:
        digest.update(chunk)
        file.write(chunk)

    async def take() -> None:
        if len(chunk) > SMALL_BYTES:
            await asyncio.to_thread(put)
        else:
            put()

    async with asyncio.timeout(fetch_timeout_s(ref.size_bytes)):
        for _ in range(info.chunks or 0):
            asked = _next_chunk(js, ref, chunk_subject(info), sequence)
            found = (await asyncio.gather(asked, take()))[0] if chunk else await asked
            chunk, sequence = found.data or b"", (found.seq or 0) + 1
            if (size := size + len(chunk)) > ref.size_bytes:
                raise Reject(f"blob {ref.name} has more than the expected {ref.size_bytes} bytes in the store")
        await take()
    if digest.hexdigest() != ref.sha256:
        raise Reject(f"blob {ref.name} has SHA-256 {digest.hexdigest()}, expected {ref.sha256}: the store's copy is damaged")


async def _next_chunk(js: JetStreamContext, ref: BlobRef, subject: str, sequence: int) -> RawStreamMsg:
    """The first chunk that is stored at `sequence` or later."""
    try:
        return await js.get_msg(STREAM_NAME, sequence, subject, next=True)
    except NotFoundError:
        raise Reject(in_part(ref)) from None


def chunk_subject(info: ObjectInfo) -> str:
    return f"$O.{BLOBS_BUCKET}.C.{info.nuid}"


def in_part(ref: BlobRef) -> str:
    return f"blob {ref.name} is in the store, but not all of it"


def fetch_timeout_s(size_bytes: int) -> float:
    """Maximum duration of a blob's fetch."""
    return FETCH_TIMEOUT_S + size_bytes / MIN_BYTES_PER_S


def unpack_blob(ref: BlobRef, packed: bytes, into: Path) -> None:
    """Write the folder that `packed` holds to `into`. Raises: Reject when the digest differs or it holds no plain files only; OSError."""
    check_digest(ref, packed)
    write_folder(packed, into)


def write_folder(packed: bytes, into: Path) -> None:
    """The same of a blob whose digest is known to be right. Raises: Reject when it holds no plain files only; OSError."""
    temporary = into.with_name(f"{into.name}.{uuid.uuid4().hex}.part")
    temporary.mkdir(parents=True)
    try:
        unpack(packed, temporary)
        with suppress(OSError):  # another runner was faster
            temporary.rename(into)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_digest(ref: BlobRef, packed: bytes) -> None:
    """Raises: Reject when it is another one."""
    digest = hashlib.sha256(packed).hexdigest()
    if digest != ref.sha256:
        raise Reject(f"blob {ref.name} has SHA-256 {digest}, expected {ref.sha256}: the store's copy is damaged")
