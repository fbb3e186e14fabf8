"""Blobs of tasks: bytes stored, and the download of an adapter. `marlaas.client` re-exports the public part."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.blobs import unpack_blob
from common.client_api.errors import ClientError
from common.client_api.protocol import AnyDoor, at_cursor, pages
from common.errors import Reject
from common.messages import AdapterAnswer, AdapterRef, AskAdapter, AskChunk, AskUsage, ChunkAnswer, Event, UsageAnswer
from common.messages.asks import CHUNK_BYTES

MAX_CONCURRENT_PARTS = 8
"""Maximum parts of a blob that are requested concurrently."""


@dataclass(frozen=True)
class Pruned:
    """Blobs of one tenant that `prune` deleted, or would delete."""

    tenant: str
    tasks: list[str]
    """Names of deleted tasks, at most 1,000."""
    task_count: int
    task_bytes: int
    blobs: int
    """Number of superseded blobs of tasks that are kept."""
    blob_bytes: int

    @property
    def bytes(self) -> int:
        return self.task_bytes + self.blob_bytes

    @classmethod
    def of(cls, tenant: str, answer: Event) -> "Pruned":
        names = answer.data.get("tasks")
        numbers = {name: whole_number(answer, name) for name in ("task_count", "task_bytes", "blobs", "blob_bytes")}
        return cls(tenant, [str(name) for name in names] if isinstance(names, list) else [], **numbers)


@dataclass
class Stored:
    """Bytes of one task in the blob store."""

    adapters: int = 0
    checkpoints: int = 0
    batches: int = 0

    @property
    def bytes(self) -> int:
        return self.adapters + self.checkpoints + self.batches


def whole_number(event: Event, name: str) -> int:
    """A number in an event's data; 0 if it is missing."""
    value = event.data.get(name)
    return int(value) if isinstance(value, int | float) else 0


async def read_usage(door: AnyDoor) -> UsageAnswer:
    """Usage of the tenant, and of all its tasks. Raises: ClientError; NoAnswer."""
    found = [page async for page in pages(door, "usage", AskUsage(), UsageAnswer, at_cursor)]
    return found[0].model_copy(update={"tasks": [one for page in found for one in page.tasks], "cursor": None})


def stored_by_task(usage: UsageAnswer) -> dict[str, Stored]:
    """Stored bytes by task, without tasks that have no blobs."""
    found = {one.task: Stored(one.adapter_bytes, one.checkpoint_bytes, one.batch_bytes) for one in usage.tasks}
    return {task: stored for task, stored in found.items() if stored.bytes}


async def download_adapter(door: AnyDoor, task: str, folder: Path | Callable[[AdapterRef], Path], version: int | None) -> AdapterRef:
    """Write one version of a task's adapter (None: the latest) to `folder`.

    Raises: ClientError, also if the content differs from the scheduler's announcement; NoAnswer.
    """
    adapter = (await door.ask("adapter", AskAdapter(task=task, version=version), AdapterAnswer)).adapter
    folder = folder(adapter) if callable(folder) else folder
    make_way(folder)
    packed = await fetch_blob(door, task, adapter)
    try:
        await asyncio.to_thread(unpack_blob, adapter.blob, packed, folder)
    except Reject as error:
        raise ClientError(f"version {adapter.version} of task {task} did not arrive as it is stored: {error}; fetch it again") from None
    except OSError as error:
        raise ClientError(f"cannot write {folder}: {error.strerror}; name another folder") from None
    return adapter


async def fetch_blob(door: AnyDoor, task: str, adapter: AdapterRef) -> bytes:
    """Content of the adapter's blob, fetched with MAX_CONCURRENT_PARTS concurrent requests. Raises: as `fetch_part`."""
    packed = bytearray(adapter.blob.size_bytes)
    offsets = iter(range(0, len(packed), CHUNK_BYTES))

    async def fetch() -> None:
        for offset in offsets:
            data = await fetch_part(door, task, adapter, offset)
            packed[offset : offset + len(data)] = data

    runners = [asyncio.create_task(fetch()) for _ in range(MAX_CONCURRENT_PARTS)]
    try:
        await asyncio.gather(*runners)
    finally:
        for runner in runners:
            runner.cancel()
    return bytes(packed)


async def fetch_part(door: AnyDoor, task: str, adapter: AdapterRef, offset: int) -> bytes:
    """The part of the adapter's blob at `offset`, a multiple of CHUNK_BYTES. Raises: ClientError if its size is wrong; NoAnswer."""
    data = (await door.ask("chunk", AskChunk(task=task, version=adapter.version, offset=offset), ChunkAnswer)).data
    if len(data) != min(CHUNK_BYTES, adapter.blob.size_bytes - offset):
        raise ClientError(f"{adapter.name}: {len(data)} bytes came for the part at {offset}; fetch it again")
    return data


def make_way(folder: Path) -> None:
    """Remove an empty `folder`, because a download becomes visible by renaming. Raises: ClientError if it is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ClientError(f"{folder} exists already; name another folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists():
            folder.rmdir()
    except OSError as error:
        raise ClientError(f"cannot write {folder}: {error.strerror}; name another folder") from None
