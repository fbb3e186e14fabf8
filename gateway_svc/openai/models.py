"""Models of a tenant: pools, versions of its tasks, and aliases. A name is resolved through the caller's door, once for each request."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from common.client_api.asking import Door, UnknownHere
from common.client_api.tenancy.aliases import Aliases
from common.messages import (
    AdapterAnswer,
    AdapterRef,
    AliasOf,
    AskAdapter,
    AskDeployment,
    AskTask,
    AskTasks,
    AskVersions,
    PoolsAnswer,
    StatusAnswer,
    TasksAnswer,
    VersionsAnswer,
)
from common.messages.asks import MAX_VERSION
from gateway_svc.access.access import Caller
from gateway_svc.openai.base_models import BaseModels
from gateway_svc.openai.errors import model_not_found
from gateway_svc.openai.model_names import PlainName, VersionName, name_of, parse_name
from gateway_svc.openai.sampling.order import Target
from gateway_svc.problems import FieldError, Problem

MAX_LISTED = 1000
"""Maximum tasks whose latest versions are listed, the newest first."""
ABSENT = "the key shows no such model; GET /v1/models lists those there are"


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    """Unix time; of a version, when the task got it or was changed after; 0 for pools."""
    owned_by: str
    """The tenant; `pool` for base models."""


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


@dataclass(frozen=True)
class Resolved:
    """What a name means now."""

    model: str
    """Exact name."""
    pool: str
    adapter: AdapterRef | None
    """None: the base model."""
    owner: str | None
    """The tenant of a version; None for base models."""
    created: int = 0

    def target(self, caller: Caller) -> Target:
        """Raises: Problem when an admin samples a base model without naming who is billed."""
        tenant = self.owner or caller.tenant
        if tenant is None:
            reason = "who is billed for a base model? Name the tenant, with ?tenant=NAME (marlaas: MARLAAS_TENANT=NAME)"
            raise Problem(400, "Invalid request", reason, "tenant_required", [FieldError("tenant", reason)])
        return Target(self.model, tenant, self.pool, self.adapter)


async def resolve(door: Door, name: str, bases: BaseModels | None = None) -> Resolved:
    """`bases`: answers for base models without a question. Raises: Problem 404 for what the tenant has not; as `Door.ask`."""
    found = parse_name(name)
    if isinstance(found, PlainName) and bases is not None and bases.has(door.tenant, found.name):
        return Resolved(found.name, found.name, None, None)
    return await (_plain(door, found.name) if isinstance(found, PlainName) else _version(door, found))


async def _plain(door: Door, name: str) -> Resolved:
    """An alias goes before a pool, which has its name only where it came later: what a tenant has named must not change."""
    found, pools = await asyncio.gather(_alias(door, name), door.ask("pools", AskDeployment(), PoolsAnswer))
    if found is not None:
        return await _version(door, VersionName(found.task, found.version))
    if name not in {pool.name for pool in pools.pools}:
        raise model_not_found(name, ABSENT)
    return Resolved(name, name, None, None)


async def _alias(door: Door, name: str) -> AliasOf | None:
    """Raises: Problem when an admin means one of several tenants' aliases."""
    found = await Aliases(door).all(name)
    if len(found) > 1:
        reason = f"several tenants have an alias '{name}'; name the tenant, with ?tenant=NAME (marlaas: MARLAAS_TENANT=NAME)"
        raise Problem(400, "Invalid request", reason, "tenant_required", [FieldError("tenant", reason)])
    return found[0] if found else None


async def _version(door: Door, name: VersionName) -> Resolved:
    """The status says whose the task is and on which pool; both never change."""
    try:
        status, adapter = await asyncio.gather(door.ask("status", AskTask(task=name.task), StatusAnswer), _adapter(door, name))
    except UnknownHere:
        raise model_not_found(str(name), ABSENT) from None
    of, found = status.status, adapter.adapter
    return Resolved(name_of(name.task, found.version), of.pool, found, of.tenant, int(of.updated_s))


async def _adapter(door: Door, name: VersionName) -> AdapterAnswer:
    """Raises: UnknownHere; Problem when no version is the best yet."""
    version = None if name.version == "latest" else name.version
    if version == "best":
        version = (await door.ask("versions", AskVersions(task=name.task, after=MAX_VERSION), VersionsAnswer)).best
        if version is None:
            raise model_not_found(str(name), "the task has no stored version yet")
    return await door.ask("adapter", AskAdapter(task=name.task, version=version), AdapterAnswer)


async def listed(door: Door) -> ModelList:
    """Aliases, pools, and the latest version of each task that has one, the newest tasks first."""
    named, answer = await asyncio.gather(Aliases(door).all(), door.ask("pools", AskDeployment(), PoolsAnswer))
    found = [Model(id=alias.name, created=int(alias.changed_s), owned_by=alias.tenant) for alias in named]
    names = {alias.name for alias in named}
    found += [Model(id=pool.name, created=0, owned_by="pool") for pool in answer.pools if pool.name not in names]
    return ModelList(data=[*found, *[model async for model in _latest(door)]])


async def _latest(door: Door) -> AsyncIterator[Model]:
    cursor, seen = None, 0
    while seen < MAX_LISTED:
        page = await door.ask("tasks", AskTasks(cursor=cursor, sort="created", descending=True), TasksAnswer)
        for status in page.tasks:
            if status.adapter is not None:
                name = name_of(status.task, status.adapter.version)
                yield Model(id=name, created=int(status.updated_s), owned_by=status.tenant)
        seen, cursor = seen + len(page.tasks), page.cursor
        if cursor is None:
            return


def as_model(found: Resolved) -> Model:
    return Model(id=found.model, created=found.created, owned_by=found.owner or "pool")
