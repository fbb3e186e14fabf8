"""Packages that tenants have uploaded."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import OWN_FAMILY, OwnPackage, own_name
from scheduler_svc.base.states import PackageKind, PackageState
from scheduler_svc.base.tables import packages
from scheduler_svc.uploads.package_queries import live_users

NO_REPLICA = f"waiting for an environment replica that serves uploaded packages (family '{OWN_FAMILY}')"


async def packages_after(
    connection: AsyncConnection, tenant: str | None, families: Collection[str], *, after: int, most: int
) -> list[OwnPackage]:
    """At most so many packages above number `after`, by number. `tenant`: None for all; `families`: those that replicas serve."""
    users = live_users(packages.c.tenant, packages.c.digest).label("users")
    of_it = packages.c.kind == PackageKind.PACKAGE, packages.c.number > after
    statement = select(packages, users).where(*of_it).order_by(packages.c.number).limit(most)
    if tenant is not None:
        statement = statement.where(packages.c.tenant == tenant)
    return [_package(row, families) for row in (await connection.execute(statement)).all()]


def _package(row: Any, families: Collection[str]) -> OwnPackage:
    waits = row.state == PackageState.CHECKING and OWN_FAMILY not in families
    return OwnPackage(
        number=row.number,
        tenant=row.tenant,
        digest=row.digest,
        size_bytes=row.size_bytes,
        state=row.state,
        reason=NO_REPLICA if waits else row.objection,
        package=row.name,
        version=row.version,
        environments=[own_name(one["name"]) for one in row.environments],
        components={own_name(one["name"]): one["components"] for one in row.environments},
        uploaded_s=row.uploaded_at.timestamp(),
        live_tasks=row.users,
    )
