"""Queries on the packages and files that tenants upload: parts, states, and the tasks that use them."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Text, cast, delete, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import BlobRef, OwnEnvironment, PackageChecked, as_json, file_blob, own_name, wheel_name
from scheduler_svc.base.states import LIVE, PackageKind, PackageState
from scheduler_svc.base.tables import package_parts, packages, tasks, tenants

MAX_REQUESTS = 16
"""Maximum request ids kept per package: each gets an event as its answer."""

Key = tuple[str, str]
"""(tenant, digest of the package)."""


@dataclass(frozen=True)
class Package:
    """A row of `packages`."""

    tenant: str
    digest: str
    kind: PackageKind
    size_bytes: int
    state: PackageState
    objection: str
    name: str
    version: str
    environments: list[OwnEnvironment]
    requests: list[str]
    weight: float
    """Weight of the tenant."""

    @property
    def wheel(self) -> BlobRef:
        """Blob of the wheel or file."""
        return BlobRef(name=blob_name(self.kind, self.tenant, self.digest), size_bytes=self.size_bytes, sha256=self.digest)


def blob_name(kind: str, tenant: str, digest: str) -> str:
    return (file_blob if kind == PackageKind.FILE else wheel_name)(tenant, digest)


_PACKAGE = (packages, select(tenants.c.weight).where(tenants.c.id == packages.c.tenant).scalar_subquery().label("weight"))


def _package(row: Any) -> Package:
    stored = {name: getattr(row, name) for name in ("tenant", "digest", "size_bytes", "objection", "name", "version", "weight")}
    environments = [OwnEnvironment.model_validate(one) for one in row.environments]
    kind, state = PackageKind(row.kind), PackageState(row.state)
    return Package(**stored, kind=kind, state=state, environments=environments, requests=list(row.requests))


def _is(key: Key) -> ColumnElement[bool]:
    return (packages.c.tenant == key[0]) & (packages.c.digest == key[1])


def _is_part(key: Key) -> ColumnElement[bool]:
    return (package_parts.c.tenant == key[0]) & (package_parts.c.digest == key[1])


async def _keys(connection: AsyncConnection, *where: ColumnElement[bool]) -> list[Key]:
    """Keys of matching packages, oldest first."""
    statement = select(packages.c.tenant, packages.c.digest).where(*where).order_by(packages.c.number)
    return [(row.tenant, row.digest) for row in (await connection.execute(statement)).all()]


async def lock(connection: AsyncConnection, key: Key) -> Package | None:
    """Lock the package's row, which also protects its parts and blob, until the transaction ends."""
    row = (await connection.execute(select(*_PACKAGE).where(_is(key)).with_for_update(of=packages))).first()
    return _package(row) if row else None


async def add(connection: AsyncConnection, key: Key, size_bytes: int, kind: PackageKind, name: str) -> None:
    """Insert a package without parts. `name`: of a file. The caller holds the lock of `lock_tenant`."""
    values = {"size_bytes": size_bytes, "kind": kind, "name": name, "state": PackageState.UPLOADING}
    await connection.execute(insert(packages).values(tenant=key[0], digest=key[1], **values))


async def lock_tenant(connection: AsyncConnection, tenant: str) -> bool:
    """Create the tenant if it does not exist, and lock it to serialize counts of its packages; False if it is deleted."""
    await connection.execute(insert(tenants).values(id=tenant).on_conflict_do_nothing())
    statement = select(tenants.c.deleted_by).where(tenants.c.id == tenant).with_for_update(key_share=True)
    return (await connection.execute(statement)).scalar_one() is None


async def change(connection: AsyncConnection, key: Key, **values: Any) -> None:
    """Update columns of a locked package. `Any`: column values."""
    await connection.execute(update(packages).where(_is(key)).values(changed_at=func.now(), **values))


async def delete_package(connection: AsyncConnection, key: Key) -> None:
    """Delete the row of a locked package, and its parts."""
    await connection.execute(delete(packages).where(_is(key)))


# --------------------------------------------------------------------------------------------------------------- parts


async def keep_part(connection: AsyncConnection, key: Key, begin: int, data: bytes) -> bool:
    """Store a part of a locked package; False if a different part is stored at this offset."""
    new = insert(package_parts).values(tenant=key[0], digest=key[1], begin=begin, data=data).on_conflict_do_nothing()
    await connection.execute(new)
    kept = select(package_parts.c.data == literal(data, package_parts.c.data.type)).where(_is_part(key), package_parts.c.begin == begin)
    return bool((await connection.execute(kept)).scalar_one())


async def kept_bytes(connection: AsyncConnection, key: Key) -> int:
    """Total bytes of the parts that have arrived."""
    statement = select(func.coalesce(func.sum(func.length(package_parts.c.data)), 0)).where(_is_part(key))
    return int((await connection.execute(statement)).scalar_one())


async def content(connection: AsyncConnection, key: Key) -> bytes:
    """Concatenated parts of the package."""
    statement = select(package_parts.c.data).where(_is_part(key)).order_by(package_parts.c.begin)
    return b"".join((await connection.execute(statement)).scalars())


async def part(connection: AsyncConnection, key: Key, begin: int) -> bytes:
    """Bytes of the stored part at offset `begin`."""
    statement = select(package_parts.c.data).where(_is_part(key), package_parts.c.begin == begin)
    return (await connection.execute(statement)).scalar_one()


async def forget_parts(connection: AsyncConnection, key: Key) -> None:
    await connection.execute(delete(package_parts).where(_is_part(key)))


async def announced_bytes(connection: AsyncConnection, tenant: str, kind: PackageKind) -> int:
    """Total declared size of the tenant's incomplete packages or files."""
    of_it = packages.c.tenant == tenant, packages.c.kind == kind, packages.c.state == PackageState.UPLOADING
    statement = select(cast(func.coalesce(func.sum(packages.c.size_bytes), 0), BigInteger)).where(*of_it)
    return int((await connection.execute(statement)).scalar_one())


# -------------------------------------------------------------------------------------------------------------- checks


async def checks_sent(connection: AsyncConnection, tenant: str) -> int:
    """Number of the tenant's packages with a check pending at the environment service."""
    of_it = packages.c.tenant == tenant, packages.c.state == PackageState.CHECKING, packages.c.sent_at.is_not(None)
    return (await connection.execute(select(func.count()).select_from(packages).where(*of_it))).scalar_one()


async def waiting(connection: AsyncConnection, *, resend_s: float, tenant: str | None = None) -> list[Key]:
    """Packages whose check must be sent, oldest first: never sent, or unanswered for `resend_s` seconds."""
    before = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, resend_s)
    due = or_(packages.c.sent_at.is_(None), packages.c.sent_at < before)
    of_it = [packages.c.tenant == tenant] if tenant is not None else []
    return await _keys(connection, packages.c.state == PackageState.CHECKING, due, *of_it)


async def mark_sent(connection: AsyncConnection, key: Key) -> None:
    await connection.execute(update(packages).where(_is(key)).values(sent_at=func.now()))


async def make_usable(connection: AsyncConnection, key: Key, found: PackageChecked) -> None:
    """Record the result of a locked package's check."""
    environments = [as_json(one) for one in found.environments]
    values = {"name": found.name, "version": found.version, "environments": environments, "checked_at": func.now()}
    await change(connection, key, state=PackageState.USABLE, **values)


async def forget_checks(connection: AsyncConnection) -> None:
    """Mark the checks of all packages as unsent, because NATS has lost them."""
    await connection.execute(update(packages).where(packages.c.state == PackageState.CHECKING).values(sent_at=None))


async def in_check(connection: AsyncConnection) -> set[Key]:
    """Packages with a pending check, about which messages may be in flight."""
    return {*await _keys(connection, packages.c.state == PackageState.CHECKING)}


# ----------------------------------------------------------------------------------------------------------------- use


async def newest_with(connection: AsyncConnection, tenant: str, environment: str, prefix: str | None) -> Package | None:
    """The tenant's most recently checked usable package with that environment, locked against deletion until the transaction ends.

    `prefix`: of its digest; None for any.
    """
    wanted = packages.c.environments.contains(literal([{"name": environment}], JSONB))
    statement = select(*_PACKAGE).where(packages.c.tenant == tenant, packages.c.state == PackageState.USABLE, wanted)
    if prefix is not None:
        statement = statement.where(packages.c.digest.startswith(prefix, autoescape=True))
    newest = statement.order_by(packages.c.checked_at.desc(), packages.c.number.desc()).limit(1)
    row = (await connection.execute(newest.with_for_update(of=packages, read=True, key_share=True))).first()
    return _package(row) if row else None


async def usable_files(connection: AsyncConnection, tenant: str, digests: Collection[str]) -> set[str]:
    """Digests of the tenant's usable files among `digests`, locked against deletion until the transaction ends."""
    of_it = packages.c.tenant == tenant, packages.c.kind == PackageKind.FILE, packages.c.digest.in_(digests)
    statement = select(packages.c.digest).where(*of_it, packages.c.state == PackageState.USABLE)
    return set((await connection.execute(statement.with_for_update(of=packages, read=True, key_share=True))).scalars())


async def usable_environments(connection: AsyncConnection, tenant: str) -> list[str]:
    """Names of the environments of the tenant's usable packages."""
    of_it = packages.c.tenant == tenant, packages.c.kind == PackageKind.PACKAGE, packages.c.state == PackageState.USABLE
    found = (await connection.execute(select(packages.c.environments).where(*of_it))).scalars()
    return sorted({own_name(one["name"]) for environments in found for one in environments})


async def beginning_with(connection: AsyncConnection, tenant: str, prefix: str) -> list[str]:
    """Digests of the tenant's packages with this prefix, at most two."""
    statement = select(packages.c.digest).where(packages.c.tenant == tenant, packages.c.digest.startswith(prefix, autoescape=True)).limit(2)
    return list((await connection.execute(statement)).scalars())


def live_users(tenant: ColumnElement[str], digest: ColumnElement[str]) -> ColumnElement[int]:
    """Number of the tenant's live tasks that use the package."""
    used = tasks.c.package["sha256"].astext == digest
    return _live(tenant, tasks.c.package.is_not(None) & used)


def live_users_of_file(tenant: ColumnElement[str], digest: ColumnElement[str]) -> ColumnElement[int]:
    """Number of the tenant's live tasks that name the file."""
    return _live(tenant, cast(tasks.c.spec, Text).contains(func.concat("file-", digest)))


def _live(tenant: ColumnElement[str], use: ColumnElement[bool]) -> ColumnElement[int]:
    return select(func.count()).select_from(tasks).where(tasks.c.tenant == tenant, tasks.c.state.in_(LIVE), use).scalar_subquery()


async def live_tasks(connection: AsyncConnection, package: Package) -> int:
    """Number of live tasks that use a package, or name a file."""
    users = live_users_of_file if package.kind == PackageKind.FILE else live_users
    return (await connection.execute(select(users(literal(package.tenant), literal(package.digest))))).scalar_one()


# ------------------------------------------------------------------------------------------------------------ deletion


async def keys_of(connection: AsyncConnection, tenant: str) -> list[Key]:
    return await _keys(connection, packages.c.tenant == tenant)


async def wheels(connection: AsyncConnection) -> dict[str, bool]:
    """Whether each package's or file's blob must be stored, by blob name."""
    rows = (await connection.execute(select(packages.c.kind, packages.c.tenant, packages.c.digest, packages.c.state))).all()
    return {blob_name(row.kind, row.tenant, row.digest): row.state in (PackageState.CHECKING, PackageState.USABLE) for row in rows}


async def left_behind(connection: AsyncConnection, *, uploading_s: float, refused_s: float) -> list[Key]:
    """Packages with an upload abandoned for `uploading_s`, a refusal older than `refused_s`, or an interrupted deletion."""

    def since(seconds: float) -> ColumnElement[bool]:
        return packages.c.changed_at < func.now() - func.make_interval(0, 0, 0, 0, 0, 0, seconds)

    state = packages.c.state
    due = or_(
        (state == PackageState.UPLOADING) & since(uploading_s),
        (state == PackageState.REFUSED) & since(refused_s),
        state == PackageState.DELETING,
    )
    return await _keys(connection, due)
