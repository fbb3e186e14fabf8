"""Statement that records what an operator orders of executors of a pool."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import MovePool

_HOLD = text("""
UPDATE executors SET measured = :measured,
    retry_at = CASE WHEN :held = 'wake' AND CAST(:measured AS text) IS NULL THEN NULL ELSE retry_at END,
    held = CASE WHEN :held = 'wake' AND state = 'awake' AND CAST(:measured AS text) IS NULL THEN NULL ELSE CAST(:held AS text) END
WHERE pool = :pool AND (CAST(:service AS text) IS NULL OR service = :service)
  AND (CAST(:accelerator AS text) IS NULL OR accelerator = :accelerator)
RETURNING accelerator, id
""")


async def hold(connection: AsyncConnection, order: MovePool) -> list[str]:
    """The executors that it concerns, as `<accelerator>/<executor>`, in order. One that is awake needs no order to wake.
    One that is paused after a failure is to try immediately, but not where its moves are to be measured."""
    given = {"pool": order.pool, "service": order.service, "accelerator": order.accelerator}
    given["measured"] = order.tier.value if order.tier is not None else None
    rows = (await connection.execute(_HOLD, given | {"held": None if order.verb == "release" else order.verb})).all()
    return sorted(f"{row.accelerator}/{row.id}" for row in rows)
