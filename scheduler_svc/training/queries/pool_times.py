"""Query on the clocks of pools, which stand while their samplers are parked."""

from sqlalchemy import Double, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import PoolClock
from scheduler_svc.base.sql import Statement
from scheduler_svc.base.tables import pool_clocks as table

_SINCE = func.extract("epoch", table.c.parked_since).cast(Double).label("since_s")
_CLOCKS = Statement(select(table.c.pool, table.c.parked_ms, _SINCE))


async def pool_clocks(connection: AsyncConnection) -> dict[str, PoolClock]:
    """Clocks by pool, of all that have ever shared an accelerator."""
    found = await _CLOCKS.run(connection)
    return {row.pool: PoolClock(parked_s=row.parked_ms / 1000, parked_since_s=row.since_s) for row in found}
