"""HttpAliases: aliases over HTTP."""

import json

from pydantic import ValidationError

from common.door.asking import UnknownHere
from common.door.names import check_name
from common.door.tenancy.aliases import AliasChanged, Aliases, RefusedAlias, Version
from common.messages import AliasOf
from marlaas.over_http.door import HttpDoor
from marlaas.over_http.questions import alias_of
from marlaas.over_http.refusals import Invalid, Unexpected, no_gateway


class HttpAliases(Aliases):
    """`Aliases` of a gateway. A change may be sent again when its answer is lost: it is the same change."""

    def __init__(self, door: HttpDoor) -> None:
        super().__init__(door)
        self._http = door

    async def set(
        self, name: str, task: str, version: Version = "latest", *, tenant: str | None = None, expected: str | None = None
    ) -> AliasOf:
        """See `Aliases.set`."""
        check_name(name)
        return await self._change("PUT", name, self._owner(tenant), expected, {"task": task, "version": version})

    async def delete(self, name: str, *, tenant: str | None = None, expected: str | None = None) -> AliasOf:
        """See `Aliases.delete`."""
        check_name(name)
        owner = self._owner(tenant)
        before = [one for one in await self.all() if (one.tenant, one.name) == (owner, name)]
        if before and expected == "":  # a route's deletion has no such condition
            raise AliasChanged(f"alias: '{name}' names {before[0].model}")
        try:
            return await self._change("DELETE", name, owner, expected)
        except UnknownHere:
            if not before:
                raise
            return before[0]  # an attempt whose answer was lost has deleted it

    async def _change(self, method: str, name: str, owner: str, expected: str | None, body: object = None) -> AliasOf:
        """The alias as it is, or was. Raises: as `set_alias`."""
        path, params, connection = f"/v1/aliases/{name}", self._http.params(owner), self._http.connection
        try:
            answer = await connection.request(method, path, params, body=body, headers=_condition(expected))
        except Unexpected as error:
            raise AliasChanged(str(error)) from None
        except Invalid as error:
            raise RefusedAlias(str(error)) from None
        try:
            return AliasOf.model_validate_json(json.dumps(alias_of(answer.json())))
        except (ValidationError, ValueError, LookupError, TypeError):
            raise no_gateway(connection.shown) from None


def _condition(expected: str | None) -> dict[str, str]:
    """Headers for what the alias must name, as in `SetAlias`."""
    if expected is None:
        return {}
    return {"If-Match": f'"{expected}"'} if expected else {"If-None-Match": "*"}
