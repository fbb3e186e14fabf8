"""Handles operators' orders to executors of a pool on shared accelerators: park, drain, wake, release, measure."""

import structlog
from pydantic import JsonValue
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.bus import Delivery
from common.messages import MovePool, as_json
from common.pools import Pools
from scheduler_svc.base.audit import accepted, refused
from scheduler_svc.base.context import HandlerContext, sender_of

log = structlog.get_logger()


async def move_pool(context: HandlerContext, delivery: Delivery) -> None:
    """Handle a job of `jobs.move-pool._all`. The accelerator's leader acts on it within a second.

    Raises: Reject if it cannot be decoded; Retry if PostgreSQL is unavailable.
    """
    request = delivery.read(MovePool)
    answer: dict[str, JsonValue] = {"request": request.request}
    async with context.transaction() as tx:
        objection = _objection_to_tier(request, context.pools)
        held = [] if objection else await _hold(tx.connection, request)
        if not held:
            where = f" on accelerator '{request.accelerator}'" if request.accelerator else ""
            what = f"{request.service} of pool" if request.service else "pool"
            absent = f"pool: no {what} '{request.pool}' shares an accelerator{where}; `marlaas pools` lists those that do"
            objection = objection or absent
            answer["reasons"] = [objection]
            tx.record(refused(sender_of(delivery), objection))
        else:
            given = {name: value for name, value in as_json(request).items() if name != "request" and value is not None}
            answer.update({**given, "executors": [*held]})
            tx.record(accepted(sender_of(delivery), request.pool, given))
            log.info("pool_moved", pool=request.pool, order=request.verb, executors=held)
        tx.emit_event(streams.EVERY_TENANT, "none", "pool", answer)


def _objection_to_tier(request: MovePool, pools: Pools) -> str | None:
    if request.tier is None:
        return None
    if request.verb != "wake":
        return f"tier: moves to a tier are measured by the verb 'wake', not by '{request.verb}'"
    pool = pools.get(request.pool)
    if pool is not None and request.tier.depth > pool.deepest_tier.depth:
        return f"tier: pool '{request.pool}' may be parked no deeper than '{pool.deepest_tier}', not in '{request.tier}'"
    return None


_HOLD = text("""
UPDATE executors SET measured = :measured,
    retry_at = CASE WHEN :held = 'wake' AND CAST(:measured AS text) IS NULL THEN NULL ELSE retry_at END,
    held = CASE WHEN :held = 'wake' AND state = 'awake' AND CAST(:measured AS text) IS NULL THEN NULL ELSE CAST(:held AS text) END
WHERE pool = :pool AND (CAST(:service AS text) IS NULL OR service = :service)
  AND (CAST(:accelerator AS text) IS NULL OR accelerator = :accelerator)
RETURNING accelerator, id
""")


async def _hold(connection: AsyncConnection, order: MovePool) -> list[str]:
    """Record the order on the executors that match it; returns them as `<accelerator>/<executor>`, sorted.

    An awake executor is not held for an order to wake. A wake order ends an executor's pause after a failure, unless its moves are
    measured.
    """
    given = {"pool": order.pool, "service": order.service, "accelerator": order.accelerator}
    given["measured"] = order.tier.value if order.tier is not None else None
    rows = (await connection.execute(_HOLD, given | {"held": None if order.verb == "release" else order.verb})).all()
    return sorted(f"{row.accelerator}/{row.id}" for row in rows)
