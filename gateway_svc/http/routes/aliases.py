"""Aliases: names of a tenant for versions of its tasks."""

import re
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Path, Response
from pydantic import BaseModel, Field

from common.client_api.tenancy.aliases import Aliases
from common.messages import AliasesAnswer, AliasOf
from common.messages.asks import MAX_VERSION
from common.spec import TASK_ID_PATTERN
from gateway_svc.http.errors import COMMON, Family, responses
from gateway_svc.http.gateway import Acting, check_job, check_name, only_one, tenant_of
from gateway_svc.http.strict import StrictRoute
from gateway_svc.problems import FieldError, invalid

router = APIRouter(prefix="/v1/aliases", tags=["aliases"], route_class=StrictRoute)
FAMILY = Family(router)

CHANGED = responses(404, 412, 429)
MAX_ETAG_CHARS = 100
AliasPath = Annotated[str, Path(max_length=200, examples=["prod"])]
IfMatch = Annotated[str | None, Header(max_length=MAX_ETAG_CHARS, description="The `ETag` that the alias must have.")]
IfNoneMatch = Annotated[str | None, Header(max_length=MAX_ETAG_CHARS, description="`*`: only where there is no such alias.")]


class AliasTarget(BaseModel):
    """The version that an alias should name."""

    model_config = {"extra": "forbid"}

    task: str = Field(pattern=TASK_ID_PATTERN, examples=["gcd-3f9a1c22d4e0"])
    version: Annotated[int, Field(strict=True, ge=1, le=MAX_VERSION)] | Literal["latest", "best"] = Field(
        default="latest", description="`latest` and `best` are resolved once, when the alias is set."
    )


@router.get("", responses=COMMON)
async def list_aliases(caller: Acting) -> AliasesAnswer:
    """List aliases by name."""
    return AliasesAnswer(aliases=await Aliases(caller.door).all(), cursor=None)


@router.get("/{name}", responses=COMMON | responses(404))
async def read_alias(caller: Acting, name: AliasPath, response: Response) -> AliasOf:
    """Read an alias; `ETag` is for `If-Match`."""
    check_name(name)
    return _shown(response, only_one(caller, await Aliases(caller.door).all(name)))


@router.put("/{name}", responses=COMMON | CHANGED | responses(413, 415))
async def put_alias(
    caller: Acting, name: AliasPath, body: AliasTarget, response: Response, if_match: IfMatch = None, if_none_match: IfNoneMatch = None
) -> AliasOf:
    """Point an alias at a version, which is then kept. Running requests keep their version."""
    check_job(caller, "set-alias")
    check_name(name, is_new=True)
    expected = _expected(if_match, if_none_match)
    return _shown(response, await Aliases(caller.door).set(name, body.task, body.version, tenant=tenant_of(caller), expected=expected))


@router.delete("/{name}", responses=COMMON | CHANGED)
async def remove_alias(caller: Acting, name: AliasPath, if_match: IfMatch = None) -> AliasOf:
    """Delete an alias; the answer is what it named."""
    check_job(caller, "delete-alias")
    check_name(name)
    return await Aliases(caller.door).delete(name, tenant=tenant_of(caller), expected=_expected(if_match, None))


def _shown(response: Response, alias: AliasOf) -> AliasOf:
    response.headers["ETag"] = f'"{alias.model}"'
    return alias


def _expected(if_match: str | None, if_none_match: str | None) -> str | None:
    """`SetAlias.expected` for these headers: a model, empty for no alias, None for no condition. Raises: Problem for other headers."""
    if if_none_match is not None:
        if if_none_match.strip() != "*" or if_match is not None:
            raise invalid(FieldError("If-None-Match", "it is `*`, without If-Match"))
        return ""
    if if_match is None:
        return None
    if (found := re.fullmatch(r'\s*"([a-z0-9-]{1,63}@[0-9]{1,10})"\s*', if_match)) is None:
        raise invalid(FieldError("If-Match", 'it is the ETag of an alias, such as "gcd-3f9a1c22d4e0@7"'))
    return found[1]
