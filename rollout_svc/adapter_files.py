"""Files of adapter versions on this replica's disk: fetched one at a time while they are wanted, unless the engine has refused them."""

import asyncio
import shutil
from collections.abc import Collection
from pathlib import Path

from common.blobs import Blobs
from common.errors import Reject, Unavailable
from common.messages import AdapterRef


class AdapterFiles:
    """A folder for each version. It belongs to this replica alone."""

    def __init__(self, blobs: Blobs, folder: Path) -> None:
        self._blobs = blobs
        self._folder = folder
        self._fetching = asyncio.Lock()
        self._fetched: set[str] = set()  # versions whose files may be on disk
        self._refused: dict[AdapterRef, str] = {}
        self.clear()  # left by a killed process, perhaps incomplete

    def clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    async def fetch(self, ref: AdapterRef) -> Path:
        """The version's folder, fetched unless it is there.

        Raises: Reject when the blob is gone or damaged, or the version is refused; Unavailable when the blob store is, or the disk
        takes nothing.
        """
        if ref in self._refused:
            raise Reject(self._refused[ref])
        folder = self._place(ref)
        self._fetched.add(folder.name)
        try:
            if not await asyncio.to_thread(folder.is_dir):  # else a wake would wait for another version's fetch
                async with self._fetching:
                    await self._blobs.fetch_folder(ref.blob, folder)
            await asyncio.to_thread(folder.stat)  # its last step, a rename, may fail without an error
        except OSError as error:
            raise Unavailable(
                f"{ref.name} cannot be written to {self._folder}: {error.strerror or error}; make room there, or set MARLAAS_DATA_DIR"
            ) from None
        return folder

    def refuse(self, ref: AdapterRef, reason: str) -> None:
        self._refused[ref] = reason

    def is_refused(self, ref: AdapterRef) -> bool:
        return ref in self._refused

    def forget_refused(self, task: str) -> None:
        self._refused = {ref: reason for ref, reason in self._refused.items() if ref.task != task}

    async def remove(self, ref: AdapterRef) -> None:
        await self._remove(self._place(ref))

    async def keep_only(self, names: Collection[str]) -> None:
        """Remove all but these versions, which are given by the engine's names."""
        for name in self._fetched - set(names):
            await self._remove(self._folder / name)

    async def _remove(self, folder: Path) -> None:
        self._fetched.discard(folder.name)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _place(self, ref: AdapterRef) -> Path:
        """The version's folder, there or not. Raises: Reject when its name leads out of this replica's own folder."""
        folder = (self._folder / ref.engine_name).resolve()
        if folder.parent != self._folder.resolve():
            raise Reject(f"an adapter has the name '{ref.engine_name}', which leads out of the folder of adapters")
        return folder
