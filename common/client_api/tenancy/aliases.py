"""Aliases: a tenant's names for versions of its tasks."""

import secrets
from typing import Literal

from common import streams
from common.bus import Outgoing
from common.client_api.asking import UnknownHere, answer_to_request, require_accepted
from common.client_api.errors import ClientError, TooManyJobs, check_name
from common.client_api.protocol import AnyDoor, at_cursor, pages
from common.client_api.tenancy.packages import owner_of
from common.messages import AliasesAnswer, AliasOf, AskAliases, DeleteAlias, SetAlias

Version = int | Literal["latest", "best"]
TIMEOUT_S = 30.0
ANSWERED = ("name", "task", "version", "pool", "changed_s")
"""Fields of the answer that describe an alias."""


class AliasChanged(ClientError):
    """The alias does not name the expected version, or does not exist."""


class RefusedAlias(ClientError):
    """The change is refused; the text starts with the invalid field."""


class Aliases:
    """Aliases of a tenant.

    All methods raise ClientError if a request is wrong or refused, NoAnswer if the scheduler does not answer. Changes also raise
    UnknownHere
    for an unknown task, version or alias; AliasChanged; RefusedAlias. `tenant`: overrides the door's own; `expected`: as in `SetAlias`.
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
        return await self._answered(Outgoing(streams.set_alias(owner), job, f"set-alias:{request}"), job)

    async def delete(self, name: str, *, tenant: str | None = None, expected: str | None = None) -> AliasOf:
        """Delete an alias; returns it as it was."""
        check_name(name)
        owner, request = owner_of(self._door, tenant, "alias"), secrets.token_hex(6)
        job = DeleteAlias(tenant=owner, request=request, name=name, expected=expected)
        return await self._answered(Outgoing(streams.delete_alias(owner), job, f"delete-alias:{request}"), job)

    async def _answered(self, out: Outgoing, job: SetAlias | DeleteAlias) -> AliasOf:
        answer = await answer_to_request(self._door, out, job.tenant, job.request, TIMEOUT_S)
        require_accepted(answer, RefusedAlias, {"unknown": UnknownHere, "busy": TooManyJobs, "changed": AliasChanged})
        return AliasOf.model_validate({"tenant": job.tenant, **{name: answer.data.get(name) for name in ANSWERED}})
