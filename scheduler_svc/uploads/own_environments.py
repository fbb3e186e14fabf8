"""Packages of tenants' own environments: listing, and the package that `own:<environment>[@<digest>]` names."""

import re
from collections.abc import Collection
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from common.errors import Reject
from common.messages import OWN_FAMILY, BlobRef, OwnPackage, is_own, own_name
from common.spec import OWN_PATTERN, TaskSpec
from scheduler_svc.base.states import PackageKind, PackageState
from scheduler_svc.base.tables import packages
from scheduler_svc.uploads.package_queries import live_users, newest_with, usable_environments

NO_REPLICA = f"waiting for an environment replica that serves uploaded packages (family '{OWN_FAMILY}')"
MAX_NAMED = 10
"""Maximum environments listed in a refusal."""


async def package_of(connection: AsyncConnection, tenant: str, spec: TaskSpec) -> BlobRef | None:
    """Blob of the package with the task's environment, locked against deletion until the transaction ends; None for an operator's
    environment.

    Raises: Reject, with the tenant's environments; identical for another tenant's package and an unknown one.
    """
    name = spec.environment.name
    if not is_own(name):
        return None
    named = re.fullmatch(OWN_PATTERN, name)
    if named is None:
        raise Reject(f"environment.name: '{name:.100}' names no environment of a package: expected {OWN_FAMILY}:<environment>[@<digest>]")
    found = await newest_with(connection, tenant, named["environment"], named["digest"])
    if found is None:
        raise Reject(f"environment.name: tenant '{tenant}' has no usable package with '{named[0]}'; {await _offer(connection, tenant)}")
    return found.wheel


async def _offer(connection: AsyncConnection, tenant: str) -> str:
    names = await usable_environments(connection, tenant)
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    has = f"it has {', '.join(names[:MAX_NAMED])}{more}" if names else "it has none"
    return f"{has}: upload one with `marlaas envs upload`"


async def packages_after(
    connection: AsyncConnection, tenant: str | None, families: Collection[str], *, after: int, most: int
) -> list[OwnPackage]:
    """Up to `most` packages above number `after`, by number. `tenant`: None for all; `families`: served by live replicas."""
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
