"""Files of tenants that this replica has used last, and their environments."""

import asyncio
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from pydantic import JsonValue

from common.blobs import Blobs
from common.caches import SingleFlightCache
from common.errors import Reject, Unavailable
from common.messages import MAX_FILE_BYTES, file_blob
from env_svc.errors import WrongOptions
from env_svc.files.environment import FileRows, digest_of, file_rows
from env_svc.files.row_file import RowFile
from env_svc.process_folder import ProcessFolder

MAX_HELD = 16
"""Files that are kept, of 512 MiB at most."""
MAX_BUILT = 16
"""Environments of one file that are kept, one for each set of options."""

log = structlog.get_logger()


@dataclass(frozen=True)
class _Held:
    """A file, and its environments, which keep it on the disk and so go with it."""

    rows: RowFile
    built: SingleFlightCache[str, FileRows] = field(default_factory=lambda: SingleFlightCache[str, FileRows](MAX_BUILT))


class FileStore:
    def __init__(self, blobs: Blobs, shared: Path) -> None:
        """`shared`: folder of all replicas of this machine that share a data folder."""
        self._blobs = blobs
        self._folder = ProcessFolder(shared)
        self._held: SingleFlightCache[tuple[str, str], _Held] = SingleFlightCache(MAX_HELD)

    def open(self) -> None:
        """Remove what killed processes have left of files that they were fetching. Without a folder, no file can be fetched."""
        try:
            self._folder.open()
        except OSError as error:
            log.warning("no_folder_for_files", folder=str(self._folder.path.parent), reason=str(error))

    def close(self) -> None:
        self._folder.close()

    async def environment(self, name: str, tenant: str, options: Mapping[str, JsonValue]) -> FileRows:
        """Raises: WrongOptions, also where the tenant has no such file; Unavailable when it cannot be fetched now."""
        digest = digest_of(name, options)
        held = await self._held.get((tenant, digest), lambda: self._fetched(tenant, digest))
        key = json.dumps([name, dict(options)], sort_keys=True)
        return await held.built.get(key, lambda: asyncio.to_thread(file_rows, name, held.rows, options))

    async def _fetched(self, tenant: str, digest: str) -> _Held:
        path = self._folder.path / f"{digest[:16]}.{uuid.uuid4().hex}"
        try:
            await self._blobs.fetch_file(file_blob(tenant, digest), digest, path, most_bytes=MAX_FILE_BYTES)
            return _Held(await asyncio.to_thread(RowFile, path))
        except Reject as error:
            raise WrongOptions(f"file-{digest} cannot be read: {error}") from None
        except OSError as error:
            raise Unavailable(f"no file can be kept in {self._folder.path}: {error.strerror}") from None
