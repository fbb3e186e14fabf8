"""Files of tenants: once all parts have arrived, a file is read in one pass, its rows are checked, and it is stored.

A file that a task names, by `file:<id>` or in an option, must be its tenant's and usable.
"""

import asyncio
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import structlog
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from common.blobs import Blobs
from common.errors import Reject
from common.formats.jsonl import RowChecker, WrongRow
from common.messages import (
    PART_BYTES,
    AskFileChunk,
    AskFiles,
    BlobRef,
    ChunkAnswer,
    FilesAnswer,
    StoredFile,
    as_json,
    file_blob,
    file_id,
    files_in,
)
from common.messages.asks import CHUNK_BYTES
from common.resilience import crashpoints
from common.spec import TaskSpec
from scheduler_svc.base.states import PackageKind, PackageState
from scheduler_svc.base.tables import package_parts
from scheduler_svc.base.tables import packages as table
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy.question import Question, Unknown, page
from scheduler_svc.uploads import package_queries as packages
from scheduler_svc.uploads.package_queries import Key, Package, live_users_of_file
from scheduler_svc.uploads.packages import OTHER_DIGEST, emit, report

NO_ROOM = "package: the scheduler has room for {free} bytes of a file that it checks, and this has {size}; an operator may give more"
PAGE_SIZE = 200
"""Maximum files per page."""

log = structlog.get_logger()


async def complete_file(tx: Transaction, key: Key, blobs: Blobs) -> None:
    """Check and store the file if all parts have arrived. Raises: Unavailable if the blob store is."""
    package = await packages.lock(tx.connection, key)
    if package is None or package.state != PackageState.UPLOADING or await packages.kept_bytes(tx.connection, key) < package.size_bytes:
        return None
    if (free := shutil.disk_usage(tempfile.gettempdir()).free) < package.size_bytes:
        log.error("no_room_for_file", bytes=package.size_bytes, free_bytes=free, folder=tempfile.gettempdir())
        return await _drop(tx, package, NO_ROOM.format(size=package.size_bytes, free=free))
    with tempfile.TemporaryFile(prefix="marlaas-file-") as copy:
        reading = _Reading()
        for begin in range(0, package.size_bytes, PART_BYTES):
            part = await packages.part(tx.connection, key, begin)
            await asyncio.to_thread(reading.feed, part)
            await asyncio.to_thread(copy.write, part)
        found = reading.digest.hexdigest()
        if found != package.digest:
            return await _drop(tx, package, OTHER_DIGEST.format(found=found))
        objection = reading.finish()
        if not objection:
            copy.seek(0)
            await blobs.put(package.wheel, copy)
    crashpoints.reached("wheel_stored")
    await packages.forget_parts(tx.connection, key)
    await _settle(tx, package, objection, reading.checker.rows)
    return None


async def _drop(tx: Transaction, package: Package, reason: str) -> None:
    """Delete the received parts of a file, which its tenant may upload again."""
    await packages.delete_package(tx.connection, (package.tenant, package.digest))
    emit(tx, package, "package", {"reasons": [reason]})


async def _settle(tx: Transaction, package: Package, objection: str, rows: int) -> None:
    key = package.tenant, package.digest
    settled = replace(package, state=PackageState.REFUSED if objection else PackageState.USABLE, objection=objection)
    await packages.change(tx.connection, key, state=settled.state, objection=objection, rows=0 if objection else rows)
    log.info("file_checked", tenant=package.tenant, file=package.digest[:12], bytes=package.size_bytes, state=settled.state)
    report(tx, settled)


class _Reading:
    """Digest and rows of a file in one pass; keeps the first error."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.checker = RowChecker()
        self._objection = ""

    def feed(self, part: bytes) -> None:
        self.digest.update(part)
        self._check(partial(self.checker.feed, part))

    def finish(self) -> str:
        """The first error; empty for a file with usable rows."""
        self._check(self.checker.finish)
        return self._objection

    def _check(self, read: Callable[[], object]) -> None:
        if not self._objection:
            try:
                read()
            except WrongRow as error:
                self._objection = str(error)


async def check_files(tx: Transaction, tenant: str, spec: TaskSpec) -> None:
    """Lock the files that a task names, to prevent their deletion until the transaction ends.

    Raises: Reject for a file that the tenant does not have or cannot use; identical for another tenant's file and an unknown one.
    """
    named = files_in(json.dumps(as_json(spec)))
    if not named:
        return
    usable = await packages.usable_files(tx.connection, tenant, named)
    if missing := sorted(named - usable):
        lacks = f"tenant '{tenant}' has no usable file '{file_id(missing[0])}'"
        raise Reject(f"environment.name: {lacks}; `marlaas files list` shows those it has")


async def answer_files(question: Question, request: AskFiles) -> FilesAnswer:
    async with question.reading() as connection:
        found = await _files_after(connection, question.tenant, after=request.after, file=request.file, most=PAGE_SIZE)
    kept, has_more = page(found, PAGE_SIZE)
    return FilesAnswer(files=kept, has_more=has_more)


async def answer_file_chunk(question: Question, request: AskFileChunk) -> ChunkAnswer:
    """A part of the file's bytes. Raises: Unknown; Reject if the offset is past the end."""
    async with question.reading() as connection:
        blob = await _blob_of(connection, question.tenant, request.file)
    if blob is None:
        raise Unknown(f"no file '{request.file}'" + (f" of tenant '{question.tenant}'" if question.tenant else ""))
    if request.offset >= blob.size_bytes:
        raise Reject(f"offset: the file has {blob.size_bytes} bytes, none at {request.offset}")
    try:
        return ChunkAnswer(data=await question.sources.chunks.read(blob, request.offset, CHUNK_BYTES))
    except Reject:
        raise Unknown(f"file '{request.file}' is no longer stored") from None


async def _files_after(connection: AsyncConnection, tenant: str | None, *, after: int, file: str | None, most: int) -> list[StoredFile]:
    """Up to `most` files above number `after`, by number. `tenant`: None for all; `file`: None for all."""
    is_part = (package_parts.c.tenant == table.c.tenant) & (package_parts.c.digest == table.c.digest)
    kept = select(func.coalesce(func.sum(func.length(package_parts.c.data)), 0)).where(is_part).scalar_subquery().label("kept")
    users = live_users_of_file(table.c.tenant, table.c.digest).label("users")
    statement = select(table, users, kept).where(table.c.kind == PackageKind.FILE, table.c.number > after)
    if tenant is not None:
        statement = statement.where(table.c.tenant == tenant)
    if file is not None:
        statement = statement.where(table.c.digest == file.removeprefix("file-"))
    return [_file(row) for row in (await connection.execute(statement.order_by(table.c.number).limit(most))).all()]


def _file(row: Any) -> StoredFile:
    return StoredFile(
        number=row.number,
        tenant=row.tenant,
        file=file_id(row.digest),
        name=row.name,
        size_bytes=row.size_bytes,
        kept_bytes=row.kept if row.state == PackageState.UPLOADING else row.size_bytes,
        state=row.state,
        reason=row.objection,
        rows=row.rows,
        uploaded_s=row.uploaded_at.timestamp(),
        live_tasks=row.users,
    )


async def _blob_of(connection: AsyncConnection, tenant: str | None, file: str) -> BlobRef | None:
    """Blob of a usable file; None if the tenant has no such file. `tenant`: None for any, for operators."""
    of_it = table.c.kind == PackageKind.FILE, table.c.digest == file.removeprefix("file-"), table.c.state == PackageState.USABLE
    statement = select(table.c.tenant, table.c.digest, table.c.size_bytes).where(*of_it).limit(1)
    if tenant is not None:
        statement = statement.where(table.c.tenant == tenant)
    row = (await connection.execute(statement)).first()
    return None if row is None else BlobRef(name=file_blob(row.tenant, row.digest), size_bytes=row.size_bytes, sha256=row.digest)
