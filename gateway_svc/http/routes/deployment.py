"""What the deployment offers and does."""

from fastapi import APIRouter

from common.door.tenancy.packages import Packages
from common.door.training.download import read_usage
from common.messages import AskDeployment, EnvironmentsAnswer, PoolsAnswer, ReplicasAnswer
from gateway_svc.http.errors import responses
from gateway_svc.http.family import Family
from gateway_svc.http.gateway import Acting, check_question
from gateway_svc.http.strict import StrictRoute
from gateway_svc.shapes import KeyOf, UsageOfAll

router = APIRouter(prefix="/v1", tags=["deployment"], route_class=StrictRoute)
FAMILY = Family(router)
COMMON = responses(400, 401, 403, 429, 503)


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


@router.get("/usage", responses=COMMON)
async def read_all_usage(caller: Acting) -> UsageOfAll:
    """Tokens and stored bytes, of the tenant and by task."""
    check_question(caller, "usage")
    found = await read_usage(caller.door)
    return UsageOfAll(tenants=found.tenants, tasks=found.tasks, store_bytes=found.store_bytes, store_limit_bytes=found.store_limit_bytes)
