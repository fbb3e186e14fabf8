"""Aliases: a tenant's names for versions of its tasks."""

import secrets
from typing import Literal

from common.client_api.asking import result_of
from common.client_api.errors import check_name
from common.client_api.protocol import AnyDoor, at_cursor, pages
from common.client_api.tenancy.packages import owner_of
from common.messages import AliasesAnswer, AliasOf, AskAliases, DeleteAlias, SetAlias

Version = int | Literal["latest", "best"]
TIMEOUT_S = 30.0


class Aliases:
    """Aliases of a tenant.

    All methods raise ClientError if a request is wrong or refused, NoAnswer if the scheduler does not answer. Changes also raise
    UnknownNamed for an unknown task, version or alias; Changed; RefusedChange. `tenant`: overrides the door's own. `expected`: as in
    `SetAlias`.
    """

    def __init__(self, door: AnyDoor) -> None:
        self._door = door

    async def all(self, name: str | None = None, *, tenant: str | None = None) -> list[AliasOf]:
        """Every alias of the tenant, or of all tenants, by tenant and name; with `name`, only aliases of that name."""
        wanted = AskAliases(name=name)
        found = pages(self._door, "aliases", wanted, AliasesAnswer, lambda page: at_cursor(page, "after"), tenant=tenant)
        return [one async for page in found for one in page.aliases]

    async def set(
        self, name: str, task: str, version: Version = "latest", *, tenant: str | None = None, expected: str | None = None
    ) -> AliasOf:
        """Create an alias, or point it to another version."""
        check_name(name)
        owner, request = owner_of(self._door, tenant, "alias"), secrets.token_hex(6)
        job = SetAlias(tenant=owner, request=request, name=name, task=task, version=version, expected=expected)
        return await self._result("set-alias", job)

    async def delete(self, name: str, *, tenant: str | None = None, expected: str | None = None) -> AliasOf:
        """Delete an alias; returns it as it was."""
        check_name(name)
        owner, request = owner_of(self._door, tenant, "alias"), secrets.token_hex(6)
        return await self._result("delete-alias", DeleteAlias(tenant=owner, request=request, name=name, expected=expected))

    async def _result(self, verb: str, job: SetAlias | DeleteAlias) -> AliasOf:
        found = await result_of(self._door, verb, job.tenant, job, job.request, TIMEOUT_S)
        return AliasOf.model_validate({"tenant": job.tenant, **found})
