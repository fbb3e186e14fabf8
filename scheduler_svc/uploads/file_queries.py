"""Files that tenants have uploaded."""

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import BlobRef, StoredFile, file_blob, file_id
from scheduler_svc.base.states import PackageKind, PackageState
from scheduler_svc.base.tables import package_parts, packages
from scheduler_svc.uploads.package_queries import live_users_of_file


async def files_after(connection: AsyncConnection, tenant: str | None, *, after: int, file: str | None, most: int) -> list[StoredFile]:
    """At most so many files above number `after`, by number. `tenant`: None for all; `file`: None for all."""
    is_part = (package_parts.c.tenant == packages.c.tenant) & (package_parts.c.digest == packages.c.digest)
    kept = select(func.coalesce(func.sum(func.length(package_parts.c.data)), 0)).where(is_part).scalar_subquery().label("kept")
    users = live_users_of_file(packages.c.tenant, packages.c.digest).label("users")
    statement = select(packages, users, kept).where(packages.c.kind == PackageKind.FILE, packages.c.number > after)
    if tenant is not None:
        statement = statement.where(packages.c.tenant == tenant)
    if file is not None:
        statement = statement.where(packages.c.digest == file.removeprefix("file-"))
    return [_file(row) for row in (await connection.execute(statement.order_by(packages.c.number).limit(most))).all()]


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


async def blob_of(connection: AsyncConnection, tenant: str | None, file: str) -> BlobRef | None:
    """The blob of a usable file; None where the tenant has no such file. `tenant`: None for any, as the operator may."""
    of_it = packages.c.kind == PackageKind.FILE, packages.c.digest == file.removeprefix("file-"), packages.c.state == PackageState.USABLE
    statement = select(packages.c.tenant, packages.c.digest, packages.c.size_bytes).where(*of_it).limit(1)
    if tenant is not None:
        statement = statement.where(packages.c.tenant == tenant)
    row = (await connection.execute(statement)).first()
    return None if row is None else BlobRef(name=file_blob(row.tenant, row.digest), size_bytes=row.size_bytes, sha256=row.digest)
