"""Handles changes of a tenant's weight and limits, which operators send; they count from the next decision on."""

from dataclasses import asdict

from pydantic import JsonValue

from common import streams
from common.bus import Delivery
from common.limits import NO_LIMIT, Limit
from common.messages import SetTenant
from scheduler_svc.base import deleted
from scheduler_svc.base.audit import accepted, refused
from scheduler_svc.base.context import HandlerContext, sender_of
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy import tenants


async def set_tenant(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.set-tenant.<tenant>`; one that sets nothing asks for the settings, and leaves no row in the audit.

    Raises: Reject when it is none; Retry when PostgreSQL is unavailable.
    """
    request = delivery.read(SetTenant)
    subject, changes = request.tenant or streams.EVERY_TENANT, _changes(request)
    async with context.transaction() as tx:
        changed = await (_set_defaults(tx, request) if request.tenant is None else _set_tenant(tx, request, request.tenant))
        if "reasons" in changed:
            tx.record(refused(sender_of(delivery), "tenant"))
        elif changes:
            tx.record(accepted(sender_of(delivery), subject, changes))
        tx.emit_event(subject, "none", "tenant", {"request": request.request} | changed)


def _changes(request: SetTenant) -> dict[str, JsonValue]:
    """What is to be set, for the audit; "default" where a tenant's own limit is removed."""
    given: dict[str, JsonValue] = {**_given(request)}
    return given | {one.of: one.value for one in request.limits} | dict.fromkeys(request.defaults, "default")


def _given(request: SetTenant) -> dict[str, float]:
    """Weight and days of retention that are to be set."""
    return {name: value for name in ("weight", *tenants.DAYS) if (value := getattr(request, name)) is not None}


async def _set_defaults(tx: Transaction, request: SetTenant) -> dict[str, JsonValue]:
    await tenants.set_limits(tx.connection, streams.EVERY_TENANT, {one.of: one.value for one in request.limits})
    found = await tenants.limits_in_use(tx.connection, streams.EVERY_TENANT)
    return {"tenant": streams.EVERY_TENANT, "limits": {name: asdict(limit) for name, limit in found.items()}}


async def _set_tenant(tx: Transaction, request: SetTenant, tenant: str) -> dict[str, JsonValue]:
    found = await tenants.find_tenant(tx.connection, tenant)
    if await deleted.find_tenant(tx.connection, tenant) is not None:
        return {"reasons": [f"tenant: '{tenant}' is deleted"]}
    if found is None:
        return {"reasons": [f"tenant: no tenant '{tenant}'; there is one from its first task on"]}
    await tenants.set_tenant(tx.connection, tenant, _given(request))
    own: dict[Limit, int | None] = {one.of: NO_LIMIT if one.value is None else one.value for one in request.limits}
    own |= dict.fromkeys(request.defaults)
    await tenants.set_limits(tx.connection, tenant, own)
    found = await tenants.find_tenant(tx.connection, tenant)
    assert found is not None
    return asdict(found)
