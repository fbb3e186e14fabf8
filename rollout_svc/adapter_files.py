"""Adapter files on this replica's disk. They are fetched one at a time while requested, except for versions that the engine refused."""

import asyncio
import shutil
from collections.abc import Collection
from pathlib import Path

from common.blobs import Blobs
from common.errors import Reject, Unavailable
from common.messages import AdapterRef


class AdapterFiles:
    """One folder per version, inside a folder that only this replica uses."""

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
        """Folder of the version, fetched if it is missing.

        Raises: Reject if the blob is missing or damaged, or the version was refused; Unavailable if the blob store is unavailable or the
        disk cannot be written.
        """
        if ref in self._refused:
            raise Reject(self._refused[ref])
        folder = self._place(ref)
        self._fetched.add(folder.name)
        try:
            if not await asyncio.to_thread(folder.is_dir):  # otherwise a wake would wait for the fetch of another version
                async with self._fetching:
                    await self._blobs.fetch_folder(ref.blob, folder)
            await asyncio.to_thread(folder.stat)  # the fetch ends with a rename, which may fail without an error
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
        """Remove every version except `names` (engine names)."""
        for name in self._fetched - set(names):
            await self._remove(self._folder / name)

    async def _remove(self, folder: Path) -> None:
        self._fetched.discard(folder.name)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _place(self, ref: AdapterRef) -> Path:
        """Folder of the version, whether or not it exists. Raises: Reject if its name points outside this replica's folder."""
        folder = (self._folder / ref.engine_name).resolve()
        if folder.parent != self._folder.resolve():
            raise Reject(f"an adapter has the name '{ref.engine_name}', which leads out of the folder of adapters")
        return folder
