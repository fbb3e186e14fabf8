"""Deletes measured moves that count no more, and old slices that were booked."""

from scheduler_svc.accelerators.decisions.moves import NEWEST
from scheduler_svc.accelerators.queries import moves, slices
from scheduler_svc.base.database import Database

SLICES_AT_ONCE = 10_000
"""Maximum slices that one call deletes."""


async def forget_old(database: Database, slices_days: int) -> None:
    """Each in a transaction of its own, so that neither keeps the other's rows. `slices_days`: age of slices to delete; 0: none."""
    async with database.transaction() as tx:
        await moves.forget(tx.connection, NEWEST)
    if slices_days:
        async with database.transaction() as tx:
            await slices.forget(tx.connection, slices_days, SLICES_AT_ONCE)
