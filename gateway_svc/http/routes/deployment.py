"""Health of the gateway; resources of the deployment; billing and the audit log."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from common.client_api.tenancy.packages import Packages
from common.client_api.training.download import read_usage
from common.messages import (
    AskAudit,
    AskBudgets,
    AskDeployment,
    AskExecutors,
    AskInvoice,
    AskPrices,
    AskSlices,
    AuditAnswer,
    BudgetsAnswer,
    EnvironmentsAnswer,
    ExecutorsAnswer,
    InvoiceAnswer,
    PoolsAnswer,
    PricesAnswer,
    ReplicasAnswer,
    SlicesAnswer,
    UsageAnswer,
)
from common.messages.accelerators import MAX_SLICES
from common.messages.asks import MAX_NUMBER, MAX_VERSION
from common.messages.tenancy.access import Role
from common.spec import Name
from gateway_svc.http.errors import COMMON, Family
from gateway_svc.http.gateway import Acting, check_question, gateway_of
from gateway_svc.http.strict import Day, Moment, StrictRoute

router = APIRouter(prefix="/v1", tags=["deployment"], route_class=StrictRoute)
FAMILY = Family(router)


class KeyOf(BaseModel):
    """Tenant and role of a request's key."""

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
    """List live replicas and their load; admins also get names."""
    return await caller.door.ask("replicas", AskDeployment(), ReplicasAnswer)


@router.get("/executors", responses=COMMON)
async def read_executors(caller: Acting, pool: Name | None = None) -> ExecutorsAnswer:
    """List samplers and trainers on shared accelerators, and which of them computes; admins also get bytes and faults."""
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
    """List slices of shared accelerators that served the tenant's tasks, newest first; admins get all slices."""
    asked = AskSlices(since_s=since, before=before, accelerator=accelerator, most=limit)
    return await caller.door.ask("slices", asked, SlicesAnswer)


@router.get("/usage", responses=COMMON)
async def read_all_usage(caller: Acting) -> UsageAnswer:
    """Read tokens and stored bytes, in total and by task."""
    check_question(caller, "usage")
    return await read_usage(caller.door)


health = APIRouter(tags=["health"])
HEALTH = Family(health)


class HealthBody(BaseModel):
    ok: bool
    detail: str


@health.get("/healthz", response_model=HealthBody, responses={503: {"model": HealthBody, "description": "The event loop is stalled."}})
async def alive(request: Request) -> Response:
    """Liveness of the process."""
    good = gateway_of(request).health.alive()
    return _answer(good, "alive" if good else "event loop stalled")


@health.get("/readyz", response_model=HealthBody, responses={503: {"model": HealthBody, "description": "Missing dependencies."}})
async def ready(request: Request) -> Response:
    """Readiness: NATS is connected, a scheduler answers, and the process is not draining."""
    found = gateway_of(request).health
    return _answer(found.ready and found.alive(), found.detail)


def _answer(good: bool, detail: str) -> Response:
    return Response(HealthBody(ok=good, detail=detail).model_dump_json(), 200 if good else 503, media_type="application/json")


billing = APIRouter(prefix="/v1", tags=["deployment"], route_class=StrictRoute)
BILLING = Family(billing)


@billing.get("/invoice", responses=COMMON)
async def read_invoice(
    caller: Acting,
    first: Annotated[Day | None, Query(description="First day, in UTC.")] = None,
    last: Annotated[Day | None, Query(description="Last day.")] = None,
    cursor: Annotated[int, Query(ge=0, le=MAX_VERSION)] = 0,
) -> InvoiceAnswer:
    """List quantities and money by day, pool and kind, paginated."""
    check_question(caller, "invoice")
    return await caller.door.ask("invoice", AskInvoice(first=first, last=last, cursor=cursor), InvoiceAnswer)


@billing.get("/prices", responses=COMMON)
async def read_prices(caller: Acting) -> PricesAnswer:
    """List present and former prices."""
    check_question(caller, "prices")
    return await caller.door.ask("prices", AskPrices(), PricesAnswer)


@billing.get("/budgets", responses=COMMON)
async def read_budgets(caller: Acting) -> BudgetsAnswer:
    """List budgets: spent and reserved in the current period."""
    check_question(caller, "budgets")
    return await caller.door.ask("budgets", AskBudgets(), BudgetsAnswer)


@billing.get("/audit", responses=COMMON)
async def read_audit(
    caller: Acting,
    since: Annotated[Moment | None, Query(description="With its time zone.")] = None,
    cursor: Annotated[int, Query(ge=0, le=MAX_NUMBER)] = 0,
) -> AuditAnswer:
    """List who did what, oldest first, paginated."""
    check_question(caller, "audit")
    return await caller.door.ask("audit", AskAudit(since=since, cursor=cursor), AuditAnswer)
