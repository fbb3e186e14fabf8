"""Reads blobs one part at a time, for clients without JetStream."""

from dataclasses import dataclass

from nats.js.errors import NotFoundError, ObjectNotFoundError
from nats.js.object_store import ObjectStore

from common.blobs.content import STREAM_NAME, chunk_subject, in_part
from common.blobs.store import CHUNK_BYTES, chunk_sequences
from common.bus import Bus, unavailable_as
from common.caches import SingleFlightCache
from common.errors import Reject
from common.messages import BlobRef
from common.streams import BLOBS_BUCKET

LAYOUTS = 256
"""Maximum blobs whose chunk positions are cached."""
CHUNKS = 8
"""Maximum chunks cached in memory, of 4 MiB each. A chunk is cached because a client requests its parts one after the other."""


@dataclass(frozen=True)
class Layout:
    """Position of a blob in the store's stream."""

    sequences: list[int]
    """Stream sequences of its chunks, in order."""
    chunk_bytes: int
    """Size of every chunk but the last."""


class BlobChunks:
    """Random access to blobs, which never change once they are complete."""

    def __init__(self, bus: Bus) -> None:
        self._js = bus.blobs_context()
        self._bucket: ObjectStore | None = None
        self._layouts: SingleFlightCache[str, Layout] = SingleFlightCache(LAYOUTS, keeps_failures=False)
        self._chunks: SingleFlightCache[int, bytes] = SingleFlightCache(CHUNKS, keeps_failures=False)

    async def read(self, ref: BlobRef, offset: int, size: int) -> bytes:
        """`size` bytes of the blob from `offset`, or fewer at its end.

        Raises: Reject if the blob is not in the store, or incomplete; Unavailable if the store does not answer.
        """
        layout = await self._layouts.get(ref.name, lambda: self._layout(ref))
        end, found = min(offset + size, ref.size_bytes), bytearray()
        while (place := offset + len(found)) < end:
            number, within = divmod(place, layout.chunk_bytes)
            if number >= len(layout.sequences):
                raise Reject(f"blob {ref.name} is shorter than {ref.size_bytes} bytes")
            sequence = layout.sequences[number]
            chunk = await self._chunks.get(sequence, lambda sequence=sequence: self._chunk(ref, sequence))
            part = chunk[within : within + end - place]
            if not part:
                raise Reject(f"blob {ref.name} is shorter than {ref.size_bytes} bytes")
            found += part
        return bytes(found)

    async def _layout(self, ref: BlobRef) -> Layout:
        with unavailable_as(f"read blob {ref.name}"):
            self._bucket = self._bucket or await self._js.object_store(BLOBS_BUCKET)
            try:
                info = await self._bucket.get_info(ref.name)
            except (ObjectNotFoundError, NotFoundError):
                raise Reject(f"blob {ref.name} is not in the store") from None
            subject, count = chunk_subject(info), info.chunks or 0
            there = (await self._js.stream_info(STREAM_NAME, subjects_filter=subject)).state.subjects or {}
            if there.get(subject, 0) != count:
                raise Reject(in_part(ref))
            options = info.options.max_chunk_size if info.options else None
            return Layout(await chunk_sequences(self._js, subject, count), options or CHUNK_BYTES)

    async def _chunk(self, ref: BlobRef, sequence: int) -> bytes:
        with unavailable_as(f"read blob {ref.name}"):
            try:
                found = await self._js.get_msg(STREAM_NAME, sequence)
            except NotFoundError:
                raise Reject(f"blob {ref.name} is no longer in the store") from None
            return found.data or b""
