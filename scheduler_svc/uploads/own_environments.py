"""Resolution of `own:<environment>[@<digest>]`: the package of the task's own tenant, which the task keeps from then on."""

import re

from sqlalchemy.ext.asyncio import AsyncConnection

from common.errors import Reject
from common.messages import OWN_FAMILY, BlobRef, is_own, own_name
from common.spec import OWN_PATTERN, TaskSpec
from scheduler_svc.uploads import package_queries as packages

MAX_NAMED = 10
"""Maximum environments that a refusal names."""


async def package_of(connection: AsyncConnection, tenant: str, spec: TaskSpec) -> BlobRef | None:
    """Blob with the package of the task's environment, kept from deletion until the transaction ends; None for an operator's environment.

    Raises: Reject, with what the tenant has; the same for a package of another tenant and for one that there is not.
    """
    name = spec.environment.name
    if not is_own(name):
        return None
    named = re.fullmatch(OWN_PATTERN, name)
    if named is None:
        raise Reject(f"environment.name: '{name:.100}' names no environment of a package: expected {OWN_FAMILY}:<environment>[@<digest>]")
    found = await packages.newest_with(connection, tenant, named["environment"], named["digest"])
    if found is None:
        raise Reject(f"environment.name: tenant '{tenant}' has no usable package with '{named[0]}'; {await _offer(connection, tenant)}")
    return found.wheel


async def _offer(connection: AsyncConnection, tenant: str) -> str:
    names = sorted({own_name(one.name) for package in await packages.usable(connection, tenant) for one in package.environments})
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    has = f"it has {', '.join(names[:MAX_NAMED])}{more}" if names else "it has none"
    return f"{has}: upload one with `marlaas envs upload`"
