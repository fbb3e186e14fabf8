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
"""Fields of the answer that an alias has."""


class AliasChanged(ClientError):
    """The alias does not name what was expected, or there is none."""


class RefusedAlias(ClientError):
    """The change is refused; the text begins with the field that is wrong."""


async def read_aliases(door: AnyDoor, name: str | None = None, *, tenant: str | None = None) -> list[AliasOf]:
    """All aliases, by tenant and name; of one name where it is given. `tenant`: in place of the door's own. Raises: as `Door.ask`."""
    found = pages(door, "aliases", AskAliases(name=name), AliasesAnswer, lambda page: at_cursor(page, "after"), tenant=tenant)
    return [one async for page in found for one in page.aliases]


async def set_alias(
    door: AnyDoor,
    tenant: str,
    name: str,
    task: str,
    version: Version = "latest",
    *,
    expected: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> AliasOf:
    """Let an alias name a version. `expected`: as in `SetAlias`.

    Raises: UnknownHere for no such task or version; AliasChanged; RefusedAlias; ClientError; NoAnswer.
    """
    job = SetAlias(tenant=tenant, request=secrets.token_hex(6), name=name, task=task, version=version, expected=expected)
    return await _answered(door, Outgoing(streams.set_alias(tenant), job, f"set-alias:{job.request}"), job, timeout_s)


async def delete_alias(door: AnyDoor, tenant: str, name: str, *, expected: str | None = None, timeout_s: float = TIMEOUT_S) -> AliasOf:
    """Delete an alias; what it named. Raises: UnknownHere for no such alias; AliasChanged; ClientError; NoAnswer."""
    job = DeleteAlias(tenant=tenant, request=secrets.token_hex(6), name=name, expected=expected)
    return await _answered(door, Outgoing(streams.delete_alias(tenant), job, f"delete-alias:{job.request}"), job, timeout_s)


async def _answered(door: AnyDoor, out: Outgoing, job: SetAlias | DeleteAlias, timeout_s: float) -> AliasOf:
    answer = await answer_to_request(door, out, job.tenant, job.request, timeout_s)
    require_accepted(answer, RefusedAlias, {"unknown": UnknownHere, "busy": TooManyJobs, "changed": AliasChanged})
    return AliasOf.model_validate({"tenant": job.tenant, **{name: answer.data.get(name) for name in ANSWERED}})


class Aliases:
    """Aliases of a tenant.

    All methods raise ClientError when something is wrong or refused, NoAnswer when the scheduler does not answer.
    """

    def __init__(self, door: AnyDoor) -> None:
        self._door = door

    async def all(self, *, tenant: str | None = None) -> list[AliasOf]:
        """Every alias of the tenant, or of all. `tenant`: in place of the client's own."""
        return await read_aliases(self._door, tenant=tenant)

    async def set(
        self, name: str, task: str, version: Version = "latest", *, tenant: str | None = None, expected: str | None = None
    ) -> AliasOf:
        """Let an alias name a version. `tenant`: whose it is; default: the key's. `expected`: as in `SetAlias`."""
        check_name(name)
        return await set_alias(self._door, self._owner(tenant), name, task, version, expected=expected)

    async def delete(self, name: str, *, tenant: str | None = None, expected: str | None = None) -> AliasOf:
        """Delete an alias; what it named."""
        check_name(name)
        return await delete_alias(self._door, self._owner(tenant), name, expected=expected)

    def _owner(self, tenant: str | None) -> str:
        return owner_of(self._door, tenant, "alias")
