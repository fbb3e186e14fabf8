"""An engine and a blob store that keep book of adapters, and versions for them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from common.messages import AdapterRef, BlobRef, Canary
from rollout_svc.adapters import Adapters
from rollout_svc.engine.config import EXACT
from tests.support.waiting import at_work

CANARY = np.arange(8, dtype="<i4")


class Book:
    """An engine and a blob store: the adapters that are there, and those that were removed under a request."""

    def __init__(self) -> None:
        self.settings = SimpleNamespace(adapters_held=8, serving_adapters=0)
        self.held: set[str] = set()
        self.used: list[str] = []
        self.lost: list[str] = []
        self.may_unload = asyncio.Event()
        self.may_unload.set()
        self.unloading: list[str] = []
        self.late: set[str] = set()
        """Blobs that come when `may_come` is set."""
        self.may_come = asyncio.Event()
        self.asked: list[str] = []
        self.differences = [0.0] * (len(CANARY) - 1)
        """Between its log-probabilities of the canary and the trainer's."""

    async def fetch_folder(self, ref: BlobRef, into: Path) -> Path:
        self.asked.append(ref.name)
        if ref.name in self.late:
            await self.may_come.wait()
        into.mkdir(parents=True, exist_ok=True)
        return into

    async def load(self, name: str, folder: Path) -> None:
        assert folder.is_dir()
        self.held.add(name)

    async def unload(self, name: str) -> None:
        self.unloading.append(name)
        await self.may_unload.wait()  # an engine answers between two of its steps
        self.held.remove(name)
        self.lost += [used for used in self.used if used == name]

    async def prompt_logprobs(self, ids: Sequence[int], adapter: str | None) -> list[float]:
        return [difference - 1.0 for difference in self.differences]


@asynccontextmanager
async def adapters_of(book: Book, folder: Path) -> AsyncIterator[Adapters]:
    """Adapters over the book, at work until the block ends."""
    adapters = Adapters(book, book, folder, keep=2, keep_s=0, tolerance=EXACT)  # pyright: ignore[reportArgumentType]
    async with at_work(adapters.run()):
        yield adapters


def version(number: int, task: str = "task") -> AdapterRef:
    blob = BlobRef(name=f"{task}.v{number}.adapter-0", size_bytes=1, sha256=f"{number:064d}")
    canary = Canary(ids=CANARY.tobytes(), logprobs=np.full(len(CANARY) - 1, -1.0, "<f4").tobytes())
    return AdapterRef(task=task, version=number, rank=8, blob=blob, canary=canary)
