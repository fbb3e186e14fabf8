"""What the deployment offers and does."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from common.door.tenancy.packages import Packages
from common.door.training.download import read_usage
from common.messages import (
    AskDeployment,
    AskExecutors,
    AskSlices,
    EnvironmentsAnswer,
    ExecutorsAnswer,
    PoolsAnswer,
    ReplicasAnswer,
    SlicesAnswer,
    UsageAnswer,
)
from common.messages.accelerators import MAX_SLICES
from common.messages.tenancy.access import Role
from common.spec import Name
from gateway_svc.http.errors import responses
from gateway_svc.http.family import Family
from gateway_svc.http.gateway import Acting, check_question
from gateway_svc.http.strict import StrictRoute

router = APIRouter(prefix="/v1", tags=["deployment"], route_class=StrictRoute)
FAMILY = Family(router)
COMMON = responses(400, 401, 403, 429, 503)


class KeyOf(BaseModel):
    """What the key of a request is for."""

    tenant: str | None = Field(description="Null for an admin's, which acts for every tenant.")
    role: Role


@router.get("/key", responses=COMMON)
async def read_key(caller: Acting) -> KeyOf:
    """What the key of this request is for: its tenant and role."""
    return KeyOf(tenant=caller.tenant, role=caller.role)


@router.get("/pools", responses=COMMON)
async def read_pools(caller: Acting) -> PoolsAnswer:
    """Base models that a task may name."""
    return await caller.door.ask("pools", AskDeployment(), PoolsAnswer)


@router.get("/environments", responses=COMMON)
async def read_environments(caller: Acting) -> EnvironmentsAnswer:
    """Environments that a task may name, and the tenant's own packages."""
    found = await caller.door.ask("envs", AskDeployment(), EnvironmentsAnswer)
    packages = await Packages(caller.door).all() if found.has_more else found.packages
    return found.model_copy(update={"packages": packages, "has_more": False})


@router.get("/replicas", responses=COMMON)
async def read_replicas(caller: Acting) -> ReplicasAnswer:
    """Live replicas of the services, and their load; with their names for admins."""
    return await caller.door.ask("replicas", AskDeployment(), ReplicasAnswer)


@router.get("/executors", responses=COMMON)
async def read_executors(caller: Acting, pool: Name | None = None) -> ExecutorsAnswer:
    """Samplers and trainers on shared accelerators: where their state is, who computes and who waits. Bytes and faults are for admins."""
    return await caller.door.ask("executors", AskExecutors(pool=pool), ExecutorsAnswer)


@router.get("/slices", responses=COMMON)
async def read_slices(
    caller: Acting,
    since: Annotated[
        float | None, Query(ge=0, allow_inf_nan=False, description="Unix time; slices ordered before it are left out.")
    ] = None,
    before: Annotated[int | None, Query(ge=1, lt=2**31, description="`before` of the page before.")] = None,
    accelerator: Name | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_SLICES)] = MAX_SLICES,
) -> SlicesAnswer:
    """Slices of shared accelerators, the newest first: those that served the tenant's tasks, with its own shares; for admins all."""
    asked = AskSlices(since_s=since, before=before, accelerator=accelerator, most=limit)
    return await caller.door.ask("slices", asked, SlicesAnswer)


@router.get("/usage", responses=COMMON)
async def read_all_usage(caller: Acting) -> UsageAnswer:
    """Tokens and stored bytes, of the tenant and by task."""
    check_question(caller, "usage")
    return await read_usage(caller.door)
