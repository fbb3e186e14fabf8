"""A tenant's files: rows to train on."""

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import IO

from common import streams
from common.bus import Outgoing
from common.client_api.asking import UnknownHere, answer_to, require_accepted
from common.client_api.errors import ClientError, TooManyJobs
from common.client_api.protocol import AnyDoor, after_last, pages
from common.client_api.tenancy.packages import UPLOAD_TIMEOUT_S, delete_upload, owner_of
from common.formats.jsonl import RowChecker, WrongRow
from common.messages import (
    DIGEST_CHARS,
    MAX_FILE_BYTES,
    PART_BYTES,
    AskFileChunk,
    AskFiles,
    ChunkAnswer,
    Event,
    FilesAnswer,
    StoredFile,
    UploadFile,
    file_id,
)
from common.messages.asks import CHUNK_BYTES

AHEAD = 16
"""Maximum parts sent before the scheduler has stored the first of them: jobs of all tenants share a stream."""
PAUSE_S = 0.1
REFUSED_S = 3.0
"""Seconds after which a file of which the scheduler has stored nothing counts as refused; the answer to its last part has the reason."""


class Files:
    """Files of a tenant.

    All methods raise ClientError if a request is wrong or refused, NoAnswer if the scheduler does not answer.
    """

    def __init__(self, door: AnyDoor) -> None:
        self._door = door

    async def upload(self, file: IO[bytes], name: str, tenant: str | None = None, *, timeout_s: float = UPLOAD_TIMEOUT_S) -> StoredFile:
        """Upload a seekable file in parts, and wait until its rows are checked.

        Invalid rows are found before anything is sent. Parts that are stored already are not resent. An interrupted upload is completed by
        the next upload of the same file. Raises: Unavailable if NATS does not store a part.
        """
        owner = owner_of(self._door, tenant, "file")
        size, digest = await asyncio.to_thread(_checked, file)
        present = await self._present(owner, file_id(digest))
        if present is not None and present.state == "usable":
            return present
        await self._send(file, name, owner, size, digest, timeout_s)
        return await self.find(file_id(digest), owner)

    async def _send(self, file: IO[bytes], name: str, owner: str, size: int, digest: str, timeout_s: float) -> None:
        """Send the file, and wait until its rows are checked. Raises: ClientError with the reason; NoAnswer; Unavailable."""
        request = secrets.token_hex(6)

        async def part(offset: int) -> Outgoing:
            data = await asyncio.to_thread(_read, file, offset)
            job = UploadFile(tenant=owner, request=request, digest=digest, size_bytes=size, offset=offset, data=data, name=name)
            return Outgoing(streams.job("upload-file", owner), job, f"upload:{request}:{offset}")

        *first, last = range(0, size, PART_BYTES)
        async with asyncio.timeout(timeout_s):
            for number, offset in enumerate(first):
                await self._publish(await part(offset))
                if number % AHEAD == AHEAD - 1 and not await self._wait_until_kept(owner, file_id(digest), offset - AHEAD * PART_BYTES):
                    break  # it is refused; the last part's answer has the reason
        answer = await answer_to(self._door, await part(last), owner, "none", lambda event: _is_answer(event, request), timeout_s)
        require_accepted(answer)

    async def all(self, *, tenant: str | None = None) -> list[StoredFile]:
        """Every file of the tenant, or of all, oldest first. `tenant`: overrides the client's own."""
        found = pages(
            self._door, "files", AskFiles(), FilesAnswer, lambda page: after_last(page, [one.number for one in page.files]), tenant=tenant
        )
        return [file async for page in found for file in page.files]

    async def find(self, file: str, tenant: str | None = None) -> StoredFile:
        """A file of the tenant, by its id. Raises: UnknownHere if there is none."""
        found = await self._present(tenant, file)
        if found is None:
            raise UnknownHere(f"no file '{file}'; `marlaas files list` shows those there are")
        return found

    async def copies(self, file: str, tenant: str | None = None) -> list[StoredFile]:
        """Copies of the file with the id `file`, one per tenant that has it, at most one page; with `tenant`, only that tenant's."""
        return (await self._door.ask("files", AskFiles(file=file), FilesAnswer, tenant=tenant)).files

    async def named(self, named: str, tenant: str | None = None) -> StoredFile:
        """The single file whose id, or digest, starts with `named`, which has at least 12 digits. `tenant`: its owner; necessary if several
        tenants have the same file."""
        digits = named.removeprefix("file-")
        if len(digits) < DIGEST_CHARS:
            raise ClientError(f"give {DIGEST_CHARS} digits of the file's id at least, not '{named[:100]}'")
        found = [one for one in await self.all(tenant=tenant) if one.digest.startswith(digits)]
        if len(found) > 1:
            owners = ", ".join(sorted({one.tenant for one in found}))
            raise ClientError(f"{len(found)} files are named '{named[:100]}', of {owners}: give more of the id, or the tenant")
        if not found:
            raise ClientError(f"no files are named '{named[:100]}'; `marlaas files list` shows those there are")
        return found[0]

    async def content(self, file: StoredFile) -> AsyncGenerator[bytes]:
        """Content of the file in parts; the last part is yielded only after the digest was verified."""
        digest, held = hashlib.sha256(), b""
        async with aclosing(self._parts(file)) as parts:
            async for part in parts:
                if held:
                    yield held
                digest.update(part)
                held = part
        if digest.hexdigest() != file.digest:
            raise ClientError(f"{file.file} did not arrive as it is stored; fetch it again")
        yield held

    async def _parts(self, file: StoredFile) -> AsyncGenerator[bytes]:
        for offset in range(0, file.size_bytes, CHUNK_BYTES):
            yield await fetch_file_part(self._door, file, offset)

    async def fetch(self, file: StoredFile, to: Path) -> None:
        """Write the file to `to`, which must not exist. It appears only after its digest was verified.

        Raises: ClientError, also if it cannot be written.
        """
        _check_is_new(to)
        part = to.with_name(f".{to.name}.{secrets.token_hex(4)}.part")
        try:
            with part.open("xb") as written:
                async with aclosing(self.content(file)) as content:
                    async for data in content:
                        await asyncio.to_thread(written.write, data)
            part.rename(to)
        except OSError as error:
            raise ClientError(f"cannot write {to}: {error.strerror}; name another file") from None
        finally:
            part.unlink(missing_ok=True)

    async def delete(self, file: StoredFile) -> int:
        """Delete a file that no live task uses; returns the bytes freed."""
        return await delete_upload(self._door, file.tenant, file.digest)

    async def _publish(self, out: Outgoing) -> None:
        """Publish a part; retry while the maximum number of jobs is waiting."""
        while True:
            try:
                return await self._door.publish(out)
            except TooManyJobs:
                await asyncio.sleep(PAUSE_S)

    async def _wait_until_kept(self, tenant: str, file: str, size: int) -> bool:
        """Wait until the scheduler has stored `size` bytes; returns False if it has refused the file."""
        began = time.monotonic()
        while (found := await self._present(tenant, file)) is None or found.kept_bytes < size:
            if found is None and time.monotonic() - began > REFUSED_S:
                return False
            if found is not None and found.state != "uploading":
                return False
            await asyncio.sleep(PAUSE_S)
        return True

    async def _present(self, tenant: str | None, file: str) -> StoredFile | None:
        found = await self.copies(file, tenant)
        return found[0] if found else None


def _check_is_new(path: Path) -> None:
    """Raises: ClientError if `path` exists."""
    if path.exists():
        raise ClientError(f"{path} exists already; name another file")


async def fetch_file_part(door: AnyDoor, file: StoredFile, offset: int) -> bytes:
    """The part at `offset`, a multiple of CHUNK_BYTES. Raises: ClientError if its size is wrong; NoAnswer."""
    data = (await door.ask("file-chunk", AskFileChunk(file=file.file, offset=offset), ChunkAnswer, tenant=file.tenant)).data
    if len(data) != min(CHUNK_BYTES, file.size_bytes - offset):
        raise ClientError(f"{file.file}: {len(data)} bytes came for the part at {offset}; fetch it again")
    return data


def _checked(file: IO[bytes]) -> tuple[int, str]:
    """Size in bytes and digest of a file whose rows are valid. Raises: ClientError."""
    size, digest, rows = 0, hashlib.sha256(), RowChecker()
    file.seek(0)
    try:
        while data := file.read(PART_BYTES):
            size += len(data)
            if size > MAX_FILE_BYTES:
                raise ClientError(f"the file has more than {MAX_FILE_BYTES} bytes, which is the maximum")
            digest.update(data)
            rows.feed(data)
        rows.finish()
    except WrongRow as error:
        raise ClientError(str(error)) from None
    return size, digest.hexdigest()


def _read(file: IO[bytes], offset: int) -> bytes:
    file.seek(offset)
    return file.read(PART_BYTES)


def _is_answer(event: Event, request: str) -> bool:
    return event.event == "package" and event.data.get("request") == request
