"""Models: their names (docs/adr/0032-names-of-models.md), and their resolution for a caller: to a pool, a task's version, or an alias.

A name is resolved through the caller's door, once for each request.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from common.bus import Bus, FollowedBucket
from common.client_api.asking import Door, UnknownHere
from common.client_api.errors import is_name
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
    KnownAlias,
    PoolsAnswer,
    StatusAnswer,
    TasksAnswer,
    VersionsAnswer,
)
from common.messages.asks import MAX_VERSION
from common.messages.tenancy.aliases import alias_key
from common.spec import TASK_ID_PATTERN
from common.streams import ALIASES_BUCKET
from gateway_svc.access import Caller
from gateway_svc.openai.errors import model_not_found
from gateway_svc.openai.sampling.choices import Target
from gateway_svc.problems import FieldError, Problem
from gateway_svc.serving.pools import Offers

_VERSION = re.compile(r"^(0|[1-9][0-9]{0,9})$")
MAX_LISTED = 1000
"""Maximum tasks whose latest versions are listed, newest first."""
ABSENT = "the key shows no such model; GET /v1/models lists those there are"


@dataclass(frozen=True)
class PlainName:
    """Name of a pool, for its base model, or of an alias; the syntax is the same."""

    name: str


@dataclass(frozen=True)
class VersionName:
    """A version of a task."""

    task: str
    version: int | Literal["latest", "best"]

    def __str__(self) -> str:
        return f"{self.task}@{self.version}"


def parse_name(name: str) -> PlainName | VersionName:
    """Parse a model name. Raises: Problem for an invalid name."""
    before, at, after = name.partition("@")
    if not at and is_name(name):
        return PlainName(name)
    if at and re.fullmatch(TASK_ID_PATTERN, before):
        if after == "latest" or after == "best":
            return VersionName(before, after)
        if _VERSION.match(after) and int(after) <= MAX_VERSION:
            return VersionName(before, int(after))
    raise model_not_found(name[:120], "models are named POOL, TASK@latest, TASK@best, TASK@NUMBER, or as an alias is")


def name_of(task: str, version: int) -> str:
    """The exact name of a version."""
    return str(VersionName(task, version))


class BaseModels:
    """Names that mean a pool's base model and no alias of the tenant. `run` must be running."""

    def __init__(self, bus: Bus, offers: Offers) -> None:
        self._offers = offers
        self._aliases = FollowedBucket(bus, ALIASES_BUCKET, KnownAlias)

    async def run(self) -> None:
        """Follow the aliases until cancelled."""
        await self._aliases.follow()

    def has(self, tenant: str | None, name: str) -> bool:
        """Whether the name certainly means the pool's base model; False: ask the scheduler."""
        if tenant is None or not self._aliases.is_current:
            return False
        return self._offers.has(name) and alias_key(tenant, name) not in self._aliases.known


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    """Unix time at which the task got the version or changed afterwards; 0 for pools."""
    owned_by: str
    """Name of the tenant; `pool` for base models."""


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


@dataclass(frozen=True)
class Resolved:
    """Result of resolving a model name."""

    model: str
    """Exact name of the model."""
    pool: str
    adapter: AdapterRef | None
    """The version's adapter; None: the base model."""
    owner: str | None
    """Tenant of the version; None for base models."""
    created: int = 0

    def target(self, caller: Caller) -> Target:
        """Target for sampling. Raises: Problem if an admin samples a base model without naming the tenant to bill."""
        tenant = self.owner or caller.tenant
        if tenant is None:
            reason = "who is billed for a base model? Name the tenant, with ?tenant=NAME (marlaas: MARLAAS_TENANT=NAME)"
            raise Problem(400, "Invalid request", reason, "tenant_required", [FieldError("tenant", reason)])
        return Target(self.model, tenant, self.pool, self.adapter)


async def resolve(door: Door, name: str, bases: BaseModels | None = None) -> Resolved:
    """Resolve a model name. `bases`: saves a question for base models. Raises: Problem 404 for an unknown model; as `Door.ask`."""
    found = parse_name(name)
    if isinstance(found, PlainName) and bases is not None and bases.has(door.tenant, found.name):
        return Resolved(found.name, found.name, None, None)
    return await (_plain(door, found.name) if isinstance(found, PlainName) else _version(door, found))


async def _plain(door: Door, name: str) -> Resolved:
    """Resolve an alias or pool. An alias has precedence: a pool of the same name came later, and tenants' names must not change meaning."""
    found, pools = await asyncio.gather(_alias(door, name), door.ask("pools", AskDeployment(), PoolsAnswer))
    if found is not None:
        return await _version(door, VersionName(found.task, found.version))
    if name not in {pool.name for pool in pools.pools}:
        raise model_not_found(name, ABSENT)
    return Resolved(name, name, None, None)


async def _alias(door: Door, name: str) -> AliasOf | None:
    """The alias, or None. Raises: Problem if several tenants have it and an admin named none."""
    found = await Aliases(door).all(name)
    if len(found) > 1:
        reason = f"several tenants have an alias '{name}'; name the tenant, with ?tenant=NAME (marlaas: MARLAAS_TENANT=NAME)"
        raise Problem(400, "Invalid request", reason, "tenant_required", [FieldError("tenant", reason)])
    return found[0] if found else None


async def _version(door: Door, name: VersionName) -> Resolved:
    """Resolve a version. The status gives the task's tenant and pool, which never change."""
    try:
        status, adapter = await asyncio.gather(door.ask("status", AskTask(task=name.task), StatusAnswer), _adapter(door, name))
    except UnknownHere:
        raise model_not_found(str(name), ABSENT) from None
    of, found = status.status, adapter.adapter
    return Resolved(name_of(name.task, found.version), of.pool, found, of.tenant, int(of.updated_s))


async def _adapter(door: Door, name: VersionName) -> AdapterAnswer:
    """Adapter of a version. Raises: UnknownHere; Problem if no version is the best yet."""
    version = None if name.version == "latest" else name.version
    if version == "best":
        version = (await door.ask("versions", AskVersions(task=name.task, after=MAX_VERSION), VersionsAnswer)).best
        if version is None:
            raise model_not_found(str(name), "the task has no stored version yet")
    return await door.ask("adapter", AskAdapter(task=name.task, version=version), AdapterAnswer)


async def listed(door: Door) -> ModelList:
    """List aliases, pools, and the latest version of each task that has one, newest tasks first."""
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
