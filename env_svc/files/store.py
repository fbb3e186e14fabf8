"""Files of tenants that this replica has used last."""

import asyncio
import uuid
from pathlib import Path

from common.blobs import Blobs
from common.errors import Reject, Unavailable
from common.messages import MAX_FILE_BYTES, file_blob
from env_svc.concurrency.single_flight import SingleFlightCache
from env_svc.errors import WrongOptions
from env_svc.files.row_file import RowFile

MAX_HELD = 16
"""Files that are kept, of 512 MiB at most."""


class FileStore:
    def __init__(self, blobs: Blobs, folder: Path) -> None:
        self._blobs = blobs
        self._folder = folder
        self._held: SingleFlightCache[tuple[str, str], RowFile] = SingleFlightCache(MAX_HELD)

    async def rows(self, tenant: str, digest: str) -> RowFile:
        """The tenant's file with that SHA-256. Raises: WrongOptions where there is none; Unavailable when it cannot be fetched now."""
        return await self._held.get((tenant, digest), lambda: self._fetched(tenant, digest))

    async def _fetched(self, tenant: str, digest: str) -> RowFile:
        path = self._folder / f"{digest[:16]}.{uuid.uuid4().hex}"
        try:
            await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True)
            await self._blobs.fetch_file(file_blob(tenant, digest), digest, path, most_bytes=MAX_FILE_BYTES)
            return await asyncio.to_thread(RowFile, path)
        except Reject as error:
            raise WrongOptions(f"file-{digest} cannot be read: {error}") from None
        except OSError as error:
            raise Unavailable(f"no file can be kept in {self._folder}: {error.strerror}") from None
