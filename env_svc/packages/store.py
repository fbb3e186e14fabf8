"""Unpacked packages of this replica; each folder exists while a process uses it.

Each tenant and digest has one folder. It gets its name only when all files are written. All folders are in this process's own folder.
"""

import asyncio
import os
import shutil
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from common.blobs import Blobs
from common.errors import Unavailable
from common.messages import MAX_PACKAGE_BYTES, BlobRef
from env_svc.packages.wheel import Wheel, WheelRefused, read_wheel
from env_svc.process_folder import ProcessFolder

log = structlog.get_logger()


@dataclass(frozen=True)
class Unpacked:
    """A package whose files can be read."""

    folder: Path
    wheel: Wheel
    """Wheel without its files."""


@dataclass
class _Held:
    users: int = 0
    package: Unpacked | None = None
    unpacking: asyncio.Lock = field(default_factory=asyncio.Lock)


class PackageStore:
    """Fetches and unpacks wheels, and removes unused ones."""

    def __init__(self, blobs: Blobs, shared: Path) -> None:
        """`shared`: folder of all replicas that use the same data folder on this machine."""
        self._blobs = blobs
        self._folder = ProcessFolder(shared)
        self._held: dict[tuple[str, str], _Held] = {}

    @property
    def folder(self) -> Path:
        return self._folder.path

    def open(self) -> None:
        """Raises: OSError."""
        self._folder.open()

    def close(self) -> None:
        self._folder.close()

    async def acquire(self, tenant: str, ref: BlobRef) -> Unpacked:
        """The unpacked package. It is kept until `release` was called as often as `acquire`.

        Raises: WheelRefused; Reject if the blob is missing or damaged; Unavailable if the blob store or the disk is unavailable.
        """
        held = self._held.setdefault((tenant, ref.sha256), _Held())
        held.users += 1
        try:
            async with held.unpacking:
                if held.package is None:
                    held.package = await self._unpacked(tenant, ref)
            return held.package
        except BaseException:
            await self.release(tenant, ref)
            raise

    async def release(self, tenant: str, ref: BlobRef) -> None:
        held = self._held[tenant, ref.sha256]
        held.users -= 1
        if held.users == 0:
            del self._held[tenant, ref.sha256]
            if held.package is not None:
                await asyncio.to_thread(shutil.rmtree, _set_aside(held.package.folder), ignore_errors=True)

    async def _unpacked(self, tenant: str, ref: BlobRef) -> Unpacked:
        if ref.size_bytes > MAX_PACKAGE_BYTES:
            raise WheelRefused(f"the wheel has {ref.size_bytes} bytes, at most {MAX_PACKAGE_BYTES} are taken")
        packed = await self._blobs.fetch(ref)
        return await asyncio.to_thread(_unpack, packed, self.folder / f"{tenant}.{ref.sha256}")


def _unpack(packed: bytes, into: Path) -> Unpacked:
    """Raises: WheelRefused, Unavailable."""
    wheel = read_wheel(packed)
    temporary = into.with_name(f"{into.name}.{uuid.uuid4().hex}.part")
    try:
        for name, content in wheel.files.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o444)
        for place, _, _ in os.walk(temporary):
            Path(place).chmod(0o755)  # regardless of the service's umask: a sandbox runs as another user
        temporary.rename(into)
    except OSError as error:
        raise Unavailable(f"could not unpack a package: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    log.info("package_unpacked", package=wheel.digest[:12], files=len(wheel.files))
    return Unpacked(into, wheel.without_files)


def _set_aside(folder: Path) -> Path:
    """Rename a folder, so that its name is free immediately."""
    return folder.rename(folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.part"))
