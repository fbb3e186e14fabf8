"""Handles previews: what a task would be accepted as, and where each value comes from. Nothing is accepted or stored."""

from pydantic import JsonValue

from common.bus import Delivery
from common.errors import Reject
from common.messages import PreviewTask, as_json, shortened
from common.pools import layers_of
from common.spec import complete, sources
from scheduler_svc.handlers.context import HandlerContext, sender_of
from scheduler_svc.handlers.intake.offer import Offer
from scheduler_svc.lifecycle.tenancy.files import check_files
from scheduler_svc.lifecycle.tenancy.limits import objections_to
from scheduler_svc.lifecycle.tenancy.own_environments import package_of
from scheduler_svc.lifecycle.warm_start import starting_adapter
from scheduler_svc.store.tenancy.audit import accepted, refused
from scheduler_svc.store.transaction import Transaction


async def preview_task(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.preview.<tenant>`. Raises: Reject when it is none; Retry when PostgreSQL is unavailable."""
    request, offer = delivery.read(PreviewTask), Offer.of(context)
    async with context.database.transaction() as tx:
        answer = await _answer(tx, request, offer)
        reasons = answer["reasons"]
        assert isinstance(reasons, list)
        by = sender_of(delivery)
        tx.record(refused(by, str(reasons[0])) if reasons else accepted(by, ""))
        tx.emit_event(request.tenant, "none", "previewed", {"request": request.request, **answer})
    context.wake_relay()


async def _answer(tx: Transaction, request: PreviewTask, offer: Offer) -> dict[str, JsonValue]:
    """`reasons` for a rejection; `spec` and `sources`, where the task can be read. The environment itself is not asked."""
    layers = layers_of(request.spec, offer.pools)
    try:
        spec = complete(request.spec, layers)
    except Reject as error:
        return {"reasons": [shortened(str(error))]}
    reasons = offer.objections(spec)
    if spec.tenant != request.tenant:
        reasons.append(f"tenant: the task says '{spec.tenant}', its subject '{request.tenant}'")
    reasons += await objections_to(tx.connection, request.tenant, spec)
    named = package_of(tx.connection, request.tenant, spec), check_files(tx, request.tenant, spec)
    for resolving in (*named, starting_adapter(tx.connection, "none", spec)):
        try:
            await resolving
        except Reject as error:
            reasons.append(str(error))
    origins: dict[str, JsonValue] = {**sources(request.spec, layers, spec)}
    return {"reasons": [shortened(reason) for reason in reasons], "spec": as_json(spec), "sources": origins}
