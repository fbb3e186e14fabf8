"""Content of a blob: fetching its chunks with limits on time and size, its digest, its failures; and a folder as bytes and back.

nats-py's own `get` follows the stream with a consumer. Such a consumer needs more permissions, pauses after some megabytes for flow
control, and keeps everything that has arrived in memory. Here each chunk is the answer to one request, and the next chunk is requested
while one is written.

A folder is an uncompressed tar of its plain files. The bytes may be untrusted: neither compressed nor sparse archives are read, so that
nothing unpacks to more than its own size, and nothing is written outside the folder.
"""

import asyncio
import hashlib
import io
import shutil
import tarfile
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import ObjectInfo, RawStreamMsg
from nats.js.errors import BadObjectMetaError, NotFoundError, ObjectNotFoundError

from common.errors import Reject, Unavailable
from common.messages import BlobRef
from common.streams import BLOBS_BUCKET

STREAM_NAME = f"OBJ_{BLOBS_BUCKET}"
"""Stream behind the blobs' bucket."""
SMALL_BYTES = 1024 * 1024
"""Maximum size of a chunk that is hashed and written on the event loop: a thread would cost more."""
FETCH_TIMEOUT_S = 120.0
"""Timeout of a small blob's fetch in seconds: the minimum of `fetch_timeout_s`."""
MIN_BYTES_PER_S = 1024 * 1024
"""Minimum rate at which a blob is fetched before it times out."""


@contextmanager
def fetching(name: str) -> Generator[None]:
    """Translate errors of a fetch inside the block. Raises: Reject if the blob is not in the store, or is damaged there; Unavailable for
    other errors of the store, and for errors of the disk.
    """
    try:
        yield
    except BadObjectMetaError:
        raise Reject(f"blob {name}: the store's copy is damaged") from None
    except (ObjectNotFoundError, NotFoundError):
        raise Reject(f"blob {name} is not in the store") from None
    except (TimeoutError, NatsError, OSError) as error:
        raise Unavailable(f"could not fetch blob {name}: {error}") from None


async def read_into(js: JetStreamContext, ref: BlobRef, info: ObjectInfo, file: IO[bytes]) -> None:
    """Write the blob's chunks to `file`. `info`: the blob's entry in the store. `js`: context whose answer timeout limits each chunk.

    Raises: Reject if the blob is incomplete, larger than `ref` says, or has another digest; the store's errors; OSError.
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
    """The first chunk stored at or after `sequence`."""
    try:
        return await js.get_msg(STREAM_NAME, sequence, subject, next=True)
    except NotFoundError:
        raise Reject(in_part(ref)) from None


def chunk_subject(info: ObjectInfo) -> str:
    return f"$O.{BLOBS_BUCKET}.C.{info.nuid}"


def in_part(ref: BlobRef) -> str:
    return f"blob {ref.name} is in the store, but not all of it"


def fetch_timeout_s(size_bytes: int) -> float:
    """Maximum seconds of a blob's fetch."""
    return FETCH_TIMEOUT_S + size_bytes / MIN_BYTES_PER_S


def unpack_blob(ref: BlobRef, packed: bytes, into: Path) -> None:
    """Write the folder packed in `packed` to `into`. Raises: Reject if the digest differs, or the folder contains anything but plain
    files; OSError."""
    check_digest(ref, packed)
    write_folder(packed, into)


def write_folder(packed: bytes, into: Path) -> None:
    """Write the folder of a blob whose digest is verified to `into`. Raises: Reject if it contains anything but plain files; OSError."""
    temporary = into.with_name(f"{into.name}.{uuid.uuid4().hex}.part")
    temporary.mkdir(parents=True)
    try:
        unpack(packed, temporary)
        with suppress(OSError):  # another runner was faster
            temporary.rename(into)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_digest(ref: BlobRef, packed: bytes) -> None:
    """Raises: Reject if the digest differs."""
    digest = hashlib.sha256(packed).hexdigest()
    if digest != ref.sha256:
        raise Reject(f"blob {ref.name} has SHA-256 {digest}, expected {ref.sha256}: the store's copy is damaged")


MAX_FILES = 10_000
"""Maximum files in a folder; adapters, checkpoints and batches have only a few."""
MAX_NAME_BYTES = 255
"""Maximum length of a file's path inside its folder, in bytes; every file system supports it."""


def pack(folder: Path) -> bytes:
    """Tar of the folder's files; equal content gives equal bytes. Raises: OSError."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                info = tarfile.TarInfo(str(path.relative_to(folder)))
                info.size = path.stat().st_size
                with path.open("rb") as content:
                    archive.addfile(info, content)
    return buffer.getvalue()


def unpack(packed: bytes, folder: Path) -> None:
    """Write the archive's files into an empty folder.

    Raises: Reject if the bytes are not such an archive, or contain anything but plain files with relative names; OSError of the disk.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:  # mode "r" would also decompress
            _extract(archive, folder, room=len(packed))
    except (tarfile.TarError, UnicodeError) as error:
        raise Reject(f"a blob is no archive of a folder: {error}") from None


def _extract(archive: tarfile.TarFile, folder: Path, *, room: int) -> None:
    """Extract at most MAX_FILES files and `room` bytes. tarfile's `extractall` cannot limit sizes, and filters names and links only from
    Python 3.11.4."""
    written: set[Path] = set()
    for info in archive:
        target = folder / _relative(info)
        if len(written) >= MAX_FILES or info.size > room:
            raise Reject(f"a blob holds more than {MAX_FILES} files, or more bytes than it has")
        if target in written or not written.isdisjoint(target.parents) or target.is_dir():
            raise Reject(f"a blob holds '{info.name}' twice, as a file and as another or a folder")
        room -= info.size
        written.add(target)
        content = archive.extractfile(info)
        assert content is not None
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            shutil.copyfileobj(content, file)


def _relative(info: tarfile.TarInfo) -> PurePosixPath:
    """The file's path inside the folder. Raises: Reject for links, devices, sparse files, and absolute or upward names."""
    path = PurePosixPath(info.name)
    is_plain = info.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not info.issparse()
    is_inside = bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in info.name
    if not is_plain or not is_inside or len(info.name.encode()) > MAX_NAME_BYTES:
        raise Reject(f"a blob holds '{info.name[:MAX_NAME_BYTES]}', which is not a plain file inside it")
    return path
