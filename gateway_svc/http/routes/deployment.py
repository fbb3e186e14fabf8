"""What the deployment offers and does."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from common.client_api.tenancy.packages import Packages
from common.client_api.training.download import read_usage
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
    """Read tenant and role of the request's key."""
    return KeyOf(tenant=caller.tenant, role=caller.role)


@router.get("/pools", responses=COMMON)
async def read_pools(caller: Acting) -> PoolsAnswer:
    """List base models that a task may name."""
    return await caller.door.ask("pools", AskDeployment(), PoolsAnswer)


@router.get("/environments", responses=COMMON)
async def read_environments(caller: Acting) -> EnvironmentsAnswer:
    """List environments that a task may name, and the tenant's packages."""
    found = await caller.door.ask("envs", AskDeployment(), EnvironmentsAnswer)
    packages = await Packages(caller.door).all() if found.has_more else found.packages
    return found.model_copy(update={"packages": packages, "has_more": False})


@router.get("/replicas", responses=COMMON)
async def read_replicas(caller: Acting) -> ReplicasAnswer:
    """List live replicas and their load; for admins with names."""
    return await caller.door.ask("replicas", AskDeployment(), ReplicasAnswer)


@router.get("/executors", responses=COMMON)
async def read_executors(caller: Acting, pool: Name | None = None) -> ExecutorsAnswer:
    """List samplers and trainers on shared accelerators, and which computes; for admins with bytes and faults."""
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
    """List slices of shared accelerators that served the tenant's tasks, newest first; for admins all."""
    asked = AskSlices(since_s=since, before=before, accelerator=accelerator, most=limit)
    return await caller.door.ask("slices", asked, SlicesAnswer)


@router.get("/usage", responses=COMMON)
async def read_all_usage(caller: Acting) -> UsageAnswer:
    """Read tokens and stored bytes, in total and by task."""
    check_question(caller, "usage")
    return await read_usage(caller.door)
