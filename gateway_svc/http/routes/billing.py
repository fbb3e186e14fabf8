"""What everything costs, and who has done what; for owners and admins."""

from typing import Annotated

from fastapi import APIRouter, Query

from common.messages import (
    AskAudit,
    AskBudgets,
    AskInvoice,
    AskPrices,
    AuditAnswer,
    BudgetsAnswer,
    InvoiceAnswer,
    PricesAnswer,
)
from common.messages.asks import MAX_NUMBER, MAX_VERSION
from gateway_svc.http.errors import responses
from gateway_svc.http.family import Family
from gateway_svc.http.gateway import Acting, check_question
from gateway_svc.http.strict import Day, Moment, StrictRoute

router = APIRouter(prefix="/v1", tags=["deployment"], route_class=StrictRoute)
FAMILY = Family(router)
COMMON = responses(400, 401, 403, 429, 503)


@router.get("/invoice", responses=COMMON)
async def read_invoice(
    caller: Acting,
    first: Annotated[Day | None, Query(description="First day, in UTC.")] = None,
    last: Annotated[Day | None, Query(description="Last day.")] = None,
    cursor: Annotated[int, Query(ge=0, le=MAX_VERSION)] = 0,
) -> InvoiceAnswer:
    """List quantities and money by day, pool and kind, paginated."""
    check_question(caller, "invoice")
    return await caller.door.ask("invoice", AskInvoice(first=first, last=last, cursor=cursor), InvoiceAnswer)


@router.get("/prices", responses=COMMON)
async def read_prices(caller: Acting) -> PricesAnswer:
    """List present and former prices."""
    check_question(caller, "prices")
    return await caller.door.ask("prices", AskPrices(), PricesAnswer)


@router.get("/budgets", responses=COMMON)
async def read_budgets(caller: Acting) -> BudgetsAnswer:
    """List budgets: spent and reserved in the current period."""
    check_question(caller, "budgets")
    return await caller.door.ask("budgets", AskBudgets(), BudgetsAnswer)


@router.get("/audit", responses=COMMON)
async def read_audit(
    caller: Acting,
    since: Annotated[Moment | None, Query(description="With its time zone.")] = None,
    cursor: Annotated[int, Query(ge=0, le=MAX_NUMBER)] = 0,
) -> AuditAnswer:
    """List who did what, oldest first, paginated."""
    check_question(caller, "audit")
    return await caller.door.ask("audit", AskAudit(since=since, cursor=cursor), AuditAnswer)
