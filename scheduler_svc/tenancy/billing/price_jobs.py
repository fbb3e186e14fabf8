"""Handles prices, which operators set; work from then on is paid by them."""

import structlog
from pydantic import JsonValue

from common import streams
from common.bus import Delivery
from common.messages import SetPrice, as_json
from scheduler_svc.base.audit import accepted, refused
from scheduler_svc.base.context import HandlerContext, sender_of
from scheduler_svc.tenancy.billing import prices

log = structlog.get_logger()


async def set_price(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.set-price._all`. Raises: Reject when it is none; Retry when PostgreSQL is unavailable."""
    request = delivery.read(SetPrice)
    answer: dict[str, JsonValue] = {"request": request.request}
    async with context.transaction() as tx:
        objection = await prices.add_price(tx.connection, request)
        if objection is not None:
            answer["reasons"] = [objection]
            tx.record(refused(sender_of(delivery), objection))
        else:
            given = {name: value for name, value in as_json(request).items() if name != "request"}
            answer.update(given)
            tx.record(accepted(sender_of(delivery), request.of, given))
            log.info("price_set", of=request.of, pool=request.pool, price=str(request.price), per=request.per)
        tx.emit_event(streams.EVERY_TENANT, "none", "price", answer)
