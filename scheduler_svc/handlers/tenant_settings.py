"""Handles changes of a tenant's weight and limits, which operators send; they count from the next decision on."""

from dataclasses import asdict

from pydantic import JsonValue

from common.bus import Delivery
from common.messages import SetTenant
from scheduler_svc.handlers.context import HandlerContext, sender_of
from scheduler_svc.store.queries import deleted, tenants
from scheduler_svc.store.tenancy.audit import accepted, refused


async def set_tenant(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.set-tenant.<tenant>`; one that sets nothing asks for the settings, and leaves no row in the audit.

    Raises: Reject when it is none; Retry when PostgreSQL is unavailable.
    """
    request = delivery.read(SetTenant)
    given = {name: value for name in ("weight", *tenants.LIMITS, *tenants.DAYS) if (value := getattr(request, name)) is not None}
    changes: dict[str, float | int | None] = given | dict.fromkeys(request.unlimited)
    answer: dict[str, JsonValue] = {"request": request.request}
    async with context.transaction() as tx:
        gone = await deleted.find_tenant(tx.connection, request.tenant)
        if gone is None:
            await tenants.set_tenant(tx.connection, request.tenant, changes)
        found = await tenants.find_tenant(tx.connection, request.tenant)
        if gone is not None:
            answer["reasons"] = [f"tenant: '{request.tenant}' is deleted"]
        elif found is None:
            answer["reasons"] = [f"tenant: no tenant '{request.tenant}'; there is one from its first task on"]
        else:
            answer.update(asdict(found))
        if "reasons" in answer:
            tx.record(refused(sender_of(delivery), "tenant"))
        elif changes:
            tx.record(accepted(sender_of(delivery), request.tenant, changes))
        tx.emit_event(request.tenant, "none", "tenant", answer)
