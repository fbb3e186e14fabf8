"""Handles what operators record of accounts and keys; NATS is told by the operator's command, which has the signing keys."""

import structlog
from pydantic import JsonValue

from common import streams
from common.bus import Delivery
from common.errors import Reject
from common.messages import SetAccess
from scheduler_svc.handlers.context import HandlerContext, sender_of
from scheduler_svc.store.tenancy import keys
from scheduler_svc.store.tenancy.audit import accepted, refused

log = structlog.get_logger()


async def set_access(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.set-access.<tenant>`. Raises: Reject when it is none; Retry when PostgreSQL is unavailable."""
    request = delivery.read(SetAccess)
    tenant = request.tenant or streams.EVERY_TENANT
    answer: dict[str, JsonValue] = {"request": request.request}
    async with context.transaction() as tx:
        try:
            async with tx.connection.begin_nested():
                effects = await keys.set_access(tx.connection, request)
            tx.record(*(accepted(sender_of(delivery), one.target, one.detail, verb=one.verb) for one in effects))
            added = request.add and request.add.key
            log.info("access_set", tenant=tenant, account=request.account, added=added, revoked=request.revoke, suspended=request.suspended)
        except Reject as error:
            answer["reasons"] = [str(error)]
            tx.record(refused(sender_of(delivery), str(error)))
        tx.emit_event(tenant, "none", "access", answer)
