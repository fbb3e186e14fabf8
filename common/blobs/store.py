"""The blob store on JetStream's object store: immutable folders, complete or absent.

A blob is an uncompressed tar of a folder. It is extracted under a temporary name, checked against its SHA-256, then renamed, so that a
visible folder is complete.
"""

import asyncio
import base64
import hashlib
import io
import re
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, cast

import structlog
from nats.errors import Error as NatsError
from nats.js import JetStreamContext, api
from nats.js.api import ObjectInfo, ObjectMeta, ObjectMetaOptions
from nats.js.errors import APIError, NotFoundError, ObjectNotFoundError
from nats.js.object_store import ObjectStore

from common.blobs.content import STREAM_NAME, chunk_subject, fetch_timeout_s, fetching, pack, read_into, write_folder
from common.bus import Bus, erase_message, unavailable_as
from common.errors import Reject, Unavailable
from common.messages import BlobRef
from common.resilience.event_loop import cancellation_kept
from common.streams import BLOBS_BUCKET

CHUNK_BYTES = 4 * 1024 * 1024
"""Chunk size in bytes: each chunk costs a request, and nats-py's default is 128 KiB."""
CHUNK_S = 30.0
"""Maximum seconds for a chunk; a slow connection may need them."""
LARGE_BYTES = 64 * 1024 * 1024
"""Minimum size of a blob whose fetch is logged."""
ANSWER_S = 5.0
"""Maximum seconds to wait for the sequence of each chunk."""
ERASED_S = 1.0
"""Maximum seconds to wait for the sequence of each chunk while chunks are erased: another replica may have erased some already."""
MAX_LISTINGS = 3
"""Maximum attempts to list the store; a listing may stall if entries are deleted concurrently."""
BLOB_NAME = re.compile(r"(?P<task>[a-z0-9-]+)\.v(?P<version>\d+)\.(?P<kind>adapter|checkpoint|batch)-[0-9a-f]+")
"""Name of a blob that a training step made."""
FULL = frozenset({10023, 10047, 10077})
"""JetStream's error codes for a store or a stream that is full."""
ROOM = "free some with `marlaas prune` or `marlaas delete TASK`, or give NATS more: docs/operations.md, Storage"
"""Remedy for a full store; work that waits for space resumes by itself."""

log = structlog.get_logger()


@dataclass(frozen=True)
class StoredBlob:
    """A blob's entry in the store."""

    name: str
    size_bytes: int
    age_s: float
    is_whole: bool


@dataclass(frozen=True)
class StoreUsage:
    """Fill level of the blob store."""

    used_bytes: int
    limit_bytes: int | None
    """None if the store has no limit of its own."""

    @property
    def share(self) -> float:
        """Used fraction, 0 to 1; 0 if there is no limit."""
        return self.used_bytes / self.limit_bytes if self.limit_bytes else 0.0


class Blobs:
    """Reads and writes folders in the blob store."""

    def __init__(self, bus: Bus, *, silence_s: float = 5.0) -> None:
        """`silence_s`: maximum seconds between two entries of a listing."""
        self._js = bus.blobs_context()
        self._chunks_js = bus.blobs_context(answer_s=CHUNK_S)
        self._silence_s = silence_s
        self._bucket: ObjectStore | None = None

    async def put_folder(self, prefix: str, folder: Path) -> BlobRef:
        """Store `folder` under a name made of `prefix` and its digest, so that it can never replace other content.

        Raises: Unavailable if the store does not answer or is full, or if this machine's disk fails to read the folder.
        """
        try:
            packed = await asyncio.to_thread(pack, folder)
        except OSError as error:
            raise Unavailable(f"could not read {folder}: {error}") from None
        ref = _ref(prefix, packed)
        await self.put(ref, packed)
        return ref

    async def put(self, ref: BlobRef, content: bytes | IO[bytes]) -> None:
        """Store `content` under the name of `ref`, unless a blob of this name exists; a file is streamed.

        Raises: Unavailable if the store does not answer or is full.
        """
        try:
            store = await self._store()
            with suppress(ObjectNotFoundError, NotFoundError):
                if await self._is_whole(await store.get_info(ref.name)):
                    return
            # nats-py allocates a zeroed buffer of a whole chunk: for small blobs that was half of their cost.
            meta = ObjectMeta(options=ObjectMetaOptions(max_chunk_size=min(CHUNK_BYTES, ref.size_bytes)))
            await store.put(ref.name, cast("bytes", content), meta=meta)  # nats-py accepts readers too
        except (TimeoutError, NatsError, OSError) as error:
            if isinstance(error, APIError) and error.err_code in FULL:
                raise Unavailable(f"the blob store is full: {ref.size_bytes} bytes of {ref.name} find no room; {ROOM}") from None
            raise Unavailable(f"could not store blob {ref.name}: {error}") from None

    async def fetch_folder(self, ref: BlobRef, into: Path) -> Path:
        """Fetch the blob's folder to `into`, unless `into` exists; returns `into`.

        Raises: Reject if the blob does not exist, is incomplete, or its size, digest or content is wrong; Unavailable if the store does not
        answer, or this machine's disk cannot store the folder.
        """
        if await asyncio.to_thread(into.is_dir):
            return into
        packed = await self.fetch(ref)
        try:
            await asyncio.to_thread(write_folder, packed, into)
        except OSError as error:
            raise Unavailable(f"could not write blob {ref.name} to {into}: {error}") from None
        return into

    async def fetch(self, ref: BlobRef) -> bytes:
        """Content of the blob as it was stored. Raises: as `fetch_folder`, except for disk errors."""
        with fetching(ref.name):
            info = await (await self._store()).get_info(ref.name)
            if info.is_link() or info.size != ref.size_bytes:
                raise Reject(f"blob {ref.name} has {info.size} bytes in the store, expected {ref.size_bytes}")
            if ref.size_bytes >= LARGE_BYTES:
                log.info("fetching", blob=ref.name, bytes=info.size, timeout_s=fetch_timeout_s(ref.size_bytes))
            packed = io.BytesIO()
            await read_into(self._chunks_js, ref, info, packed)
        return packed.getvalue()

    async def fetch_file(self, name: str, sha256: str, into: Path, *, most_bytes: int) -> None:
        """Write the raw content of a blob to `into`, with constant memory.

        Raises: Reject if the blob does not exist, has more than `most_bytes`, is damaged, or has another digest than `sha256`; Unavailable
        if the store does not answer, or this machine's disk cannot store the file.
        """
        temporary = into.with_name(f"{into.name}.{uuid.uuid4().hex}.part")
        try:
            with fetching(name):
                info = await (await self._store()).get_info(name)
                ref = BlobRef(name=name, size_bytes=info.size or 0, sha256=sha256)
                if info.is_link() or ref.size_bytes > most_bytes:
                    raise Reject(f"blob {name} has {info.size} bytes in the store, at most {most_bytes} are taken")
                with temporary.open("wb") as file:
                    await read_into(self._chunks_js, ref, info, file)
                temporary.rename(into)
        finally:
            temporary.unlink(missing_ok=True)

    async def delete(self, name: str) -> None:
        """Delete a blob, if it exists. Raises: Unavailable if the store does not answer.

        nats-py's own `delete` leaves a permanent marker for every name, and a full store does not accept a marker. Here the content is
        deleted first: an interruption leaves a name without content, which counts as absent and can still be deleted. The content's bytes
        are overwritten: a purge would leave them in NATS's files.
        """
        with unavailable_as(f"delete blob {name}"), suppress(ObjectNotFoundError, NotFoundError):
            info = await (await self._store()).get_info(name, show_deleted=True)
            if info.nuid:
                await self._erase_chunks(info)
            await self._js.purge_stream(STREAM_NAME, subject=_name_subject(name))

    async def _erase_chunks(self, info: ObjectInfo) -> None:
        """Overwrite the chunks of a blob. Raises: TimeoutError, and the store's errors."""
        subject = chunk_subject(info)
        for _ in range(MAX_LISTINGS):
            there = (await self._chunks(info.nuid)).get(subject, 0)
            if not there:
                return
            with suppress(TimeoutError):  # another replica erased some first
                for sequence in await chunk_sequences(self._js, subject, there, answer_s=ERASED_S):
                    await erase_message(self._js, STREAM_NAME, sequence)
        raise TimeoutError(f"the chunks of {info.name} were not all listed, {MAX_LISTINGS} times")

    async def forget_deleted(self) -> None:
        """Delete the markers that nats-py's own `delete` has left. Raises: Unavailable if the store does not answer."""
        with unavailable_as("list the blobs"), suppress(NotFoundError):
            for info in await self._entries():
                if info.deleted:
                    await self._js.purge_stream(STREAM_NAME, subject=_name_subject(info.name))

    async def usage(self) -> StoreUsage:
        """Fill level of the blob store. Raises: Unavailable if the store does not answer."""
        with unavailable_as("look at the blob store"):
            found = await self._js.stream_info(STREAM_NAME)
        limit = found.config.max_bytes or 0
        return StoreUsage(found.state.bytes, limit if limit > 0 else None)

    async def names(self) -> list[str]:
        """Names of all blobs in the store."""
        return [blob.name for blob in await self.listed()]

    async def listed(self) -> list[StoredBlob]:
        """Every blob in the store, and whether it is complete. Raises: Unavailable if the store does not answer or is full."""
        with unavailable_as("list the blobs"):
            try:
                infos = [info for info in await self._entries() if not info.deleted]
                counts = await self._chunks(">")
            except NotFoundError:
                return []
        return [StoredBlob(info.name, info.size or 0, _age_s(info), counts.get(chunk_subject(info), 0) == info.chunks) for info in infos]

    async def _entries(self) -> list[ObjectInfo]:
        """All entries, including markers of deleted blobs. Raises: TimeoutError if MAX_LISTINGS listings stall.

        nats-py's own `list` may wait forever if entries are deleted concurrently, because no message is then marked as the last.
        """
        store = await self._store()
        for _ in range(MAX_LISTINGS):
            watcher = await store.watch()
            found: list[ObjectInfo] = []
            try:
                with suppress(TimeoutError):
                    while isinstance(info := await watcher.updates(self._silence_s), ObjectInfo):
                        found.append(info)
                    return found
            finally:
                await watcher.stop()
        raise TimeoutError(f"no entry came for {self._silence_s:g} s, {MAX_LISTINGS} times")

    async def _store(self) -> ObjectStore:
        """The object store, looked up once: nats-py checks each time whether the bucket exists."""
        self._bucket = self._bucket or await self._js.object_store(BLOBS_BUCKET)
        return self._bucket

    async def _is_whole(self, info: ObjectInfo) -> bool:
        """Whether all of a blob's chunks exist. False after a `put` without an answer: nats-py has then stored the name, and removed the
        chunks."""
        return (await self._chunks(info.nuid)).get(chunk_subject(info), 0) == info.chunks

    async def _chunks(self, place: str) -> dict[str, int]:
        found = await self._js.stream_info(STREAM_NAME, subjects_filter=f"$O.{BLOBS_BUCKET}.C.{place}")
        return found.state.subjects or {}


async def chunk_sequences(js: JetStreamContext, subject: str, count: int, *, answer_s: float = ANSWER_S) -> list[int]:
    """Stream sequences of the messages on `subject`, without their bodies. Raises: NATS's own errors."""
    config = api.ConsumerConfig(headers_only=True, deliver_policy=api.DeliverPolicy.ALL)
    subscription = await js.subscribe(subject, stream=STREAM_NAME, ordered_consumer=True, config=config)
    try:
        with cancellation_kept():
            return [(await subscription.next_msg(timeout=answer_s)).metadata.sequence.stream for _ in range(count)]
    finally:
        await subscription.unsubscribe()


def folder_ref(prefix: str, folder: Path) -> BlobRef:
    """Reference of the blob that `put_folder` would make of this folder."""
    return _ref(prefix, pack(folder))


def _ref(prefix: str, packed: bytes) -> BlobRef:
    digest = hashlib.sha256(packed).hexdigest()
    return BlobRef(name=f"{prefix}-{digest[:16]}", size_bytes=len(packed), sha256=digest)


def _name_subject(name: str) -> str:
    """Subject of a blob's entry in the store."""
    return f"$O.{BLOBS_BUCKET}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def _age_s(info: ObjectInfo) -> float:
    return time.time() - datetime.fromisoformat(info.mtime).timestamp() if info.mtime else 0.0
