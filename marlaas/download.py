"""Blobs of tasks: what is stored, and the download of an adapter. `marlaas.client` re-exports what users see of it."""

from dataclasses import dataclass
from pathlib import Path

from common import streams
from common.blobs import BLOB_NAME, Blobs
from common.bus import Bus
from common.errors import Reject
from common.messages import AdapterRef, Event, StoredStep, TaskStatus
from marlaas.errors import ClientError


@dataclass(frozen=True)
class Pruned:
    """Blobs of one tenant that `prune` deleted, or would delete."""

    tenant: str
    tasks: list[str]
    """Deleted tasks, 1,000 at most."""
    task_count: int
    task_bytes: int
    blobs: int
    """Superseded blobs of tasks that stay."""
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
    """A number in an event's data; 0 where there is none."""
    value = event.data.get(name)
    return int(value) if isinstance(value, int | float) else 0


async def stored_by_task(bus: Bus) -> dict[str, Stored]:
    found: dict[str, Stored] = {}
    for blob in await Blobs(bus).listed():
        if name := BLOB_NAME.fullmatch(blob.name):
            kinds = found.setdefault(name["task"], Stored())
            match name["kind"]:
                case "adapter":
                    kinds.adapters += blob.size_bytes
                case "checkpoint":
                    kinds.checkpoints += blob.size_bytes
                case _:
                    kinds.batches += blob.size_bytes
    return found


async def download_adapter(bus: Bus, status: TaskStatus, folder: Path, version: int | None) -> AdapterRef:
    """Write one version of a task's adapter, the latest unless given, to `folder`. Raises: ClientError."""
    adapter = status.adapter if version in (None, status.version) else await _adapter_of(bus, status, version)
    if adapter is None:
        raise ClientError(f"task {status.task} has no adapter yet: no step is trained")
    make_way(folder)
    try:
        await Blobs(bus).fetch_folder(adapter.blob, folder)
    except Reject:
        names = [BLOB_NAME.fullmatch(blob.name) for blob in await Blobs(bus).listed() if blob.is_whole]
        there = sorted({int(name["version"]) for name in names if name and (name["task"], name["kind"]) == (status.task, "adapter")})
        raise ClientError(
            f"version {adapter.version} of task {status.task} is no longer stored; versions that are: "
            f"{', '.join(map(str, there[-20:])) or 'none'}. The section keep of its file decides"
        ) from None
    return adapter


async def _adapter_of(bus: Bus, status: TaskStatus, version: int | None) -> AdapterRef:
    """The adapter of an older version, from the event of its step."""
    known: list[int] = []
    async for delivery in bus.streams.stored(streams.EVENTS, streams.events(status.tenant, status.task)):
        stored = StoredStep.of(delivery.read(Event))
        if stored is not None and stored.adapter.version == version:
            return stored.adapter
        if stored is not None:
            known.append(stored.adapter.version)
    kept = f"{min(known)} to {max(known)}" if known else "none"
    raise ClientError(f"task {status.task} has no version {version}; known are: {kept}")


def make_way(folder: Path) -> None:
    """Remove an empty `folder`: a download becomes visible by renaming. Raises: ClientError when it holds something."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ClientError(f"{folder} exists already; name another folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists():
            folder.rmdir()
    except OSError as error:
        raise ClientError(f"cannot write {folder}: {error.strerror}; name another folder") from None
