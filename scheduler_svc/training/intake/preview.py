"""Handles previews: what a task would be accepted as, and where each value comes from. Nothing is accepted or stored."""

from pydantic import JsonValue

from common.bus import Delivery
from common.messages import PreviewTask, as_json, shortened
from common.pools import layers_of
from common.spec import sources
from scheduler_svc.base.audit import accepted, refused
from scheduler_svc.base.context import HandlerContext, sender_of
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.training.intake.catalog import Catalog
from scheduler_svc.training.intake.examination import examine


async def preview_task(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.preview.<tenant>`. Raises: Reject when it is none; Retry when PostgreSQL is unavailable."""
    request, offer = delivery.read(PreviewTask), Catalog.of(context)
    async with context.database.transaction() as tx:
        answer = await _answer(tx, request, offer)
        reasons = answer["reasons"]
        assert isinstance(reasons, list)
        by = sender_of(delivery)
        tx.record(refused(by, str(reasons[0])) if reasons else accepted(by, ""))
        tx.emit_event(request.tenant, "none", "previewed", {"request": request.request, **answer})
    context.wake_relay()


async def _answer(tx: Transaction, request: PreviewTask, offer: Catalog) -> dict[str, JsonValue]:
    """`reasons` for a rejection; `spec` and `sources`, where the task can be read. The environment itself is not asked."""
    found = await examine(tx, request.tenant, "none", request.spec, offer)
    reasons: list[JsonValue] = [shortened(reason) for reason in found.reasons]
    if found.spec is None:
        return {"reasons": reasons}
    origins: dict[str, JsonValue] = {**sources(request.spec, layers_of(request.spec, offer.pools), found.spec)}
    return {"reasons": reasons, "spec": as_json(found.spec), "sources": origins}
