"""Handles operators' orders to executors of a pool on shared accelerators: park, drain, wake, release, measure."""

import structlog
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import MovePool, as_json
from common.pools import Pools
from scheduler_svc.tenancy.requests import Answering, Refusal

log = structlog.get_logger()


async def move_pool(answer: Answering, request: MovePool) -> None:
    """Handle a job of `jobs.move-pool._all`. The accelerator's leader acts on it within a second. Raises: Refusal."""
    _check_tier(request, answer.context.pools)
    held = await _hold(answer.tx.connection, request)
    if not held:
        where = f" on accelerator '{request.accelerator}'" if request.accelerator else ""
        what = f"{request.service} of pool" if request.service else "pool"
        raise Refusal(f"pool: no {what} '{request.pool}' shares an accelerator{where}; `marlaas pools` lists those that do")
    given = {name: value for name, value in as_json(request).items() if name != "request" and value is not None}
    answer.accept(request.pool, {**given, "executors": [*held]}, given)
    log.info("pool_moved", pool=request.pool, order=request.verb, executors=held)


def _check_tier(request: MovePool, pools: Pools) -> None:
    """Raises: Refusal if a tier is named by a verb other than `wake`, or is deeper than the pool allows."""
    if request.tier is None:
        return
    if request.verb != "wake":
        raise Refusal(f"tier: moves to a tier are measured by the verb 'wake', not by '{request.verb}'")
    pool = pools.get(request.pool)
    if pool is not None and request.tier.depth > pool.deepest_tier.depth:
        raise Refusal(f"tier: pool '{request.pool}' may be parked no deeper than '{pool.deepest_tier}', not in '{request.tier}'")


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

    Unless it measures moves, an order to wake ends an executor's pause after a failure, and leaves no hold on an executor that is awake.
    """
    given = {"pool": order.pool, "service": order.service, "accelerator": order.accelerator}
    given["measured"] = order.tier.value if order.tier is not None else None
    rows = (await connection.execute(_HOLD, given | {"held": None if order.verb == "release" else order.verb})).all()
    return sorted(f"{row.accelerator}/{row.id}" for row in rows)
