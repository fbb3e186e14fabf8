"""Handles budgets of tenants, which operators set; they count from the next admission on."""

import structlog
from pydantic import JsonValue

from common.bus import Delivery
from common.messages import SetBudget, as_json
from scheduler_svc.base.audit import accepted, refused
from scheduler_svc.base.context import HandlerContext, sender_of
from scheduler_svc.tenancy import tenants
from scheduler_svc.tenancy.billing import budgets

log = structlog.get_logger()


async def set_budget(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.set-budget.<tenant>`. Raises: Reject when it is none; Retry when PostgreSQL is unavailable."""
    request = delivery.read(SetBudget)
    answer: dict[str, JsonValue] = {"request": request.request}
    async with context.transaction() as tx:
        if await tenants.find_tenant(tx.connection, request.tenant) is None:
            objection = f"tenant: no tenant '{request.tenant}'; there is one from its first task on"
            answer["reasons"] = [objection]
            tx.record(refused(sender_of(delivery), objection))
        else:
            await budgets.set_budget(tx.connection, request.tenant, request.period, request.unit, request.amount)
            await budgets.begin_periods(tx.connection)
            given = {name: value for name, value in as_json(request).items() if name in ("period", "unit", "amount")}
            answer.update(given)
            tx.record(accepted(sender_of(delivery), request.tenant, given))
            log.info("budget_set", tenant=request.tenant, period=request.period, unit=request.unit, amount=answer["amount"])
        tx.emit_event(request.tenant, "none", "budget", answer)
