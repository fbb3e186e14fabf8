"""Queries on prices. A price is never changed: an invoice of the past stays as it is."""

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import PriceOf, SetPrice
from scheduler_svc.base.tables import prices


async def add_price(connection: AsyncConnection, request: SetPrice) -> str | None:
    """Append a price; None, or why it cannot be. A repeated request changes nothing."""
    known = (await connection.execute(select(prices.c.id).where(prices.c.request == request.request))).first()
    if known is not None:
        return None
    now = (await connection.execute(select(func.now()))).scalar_one()
    if request.valid_from is not None and request.valid_from < now:
        return f"valid_from: {request.valid_from.isoformat()} is in the past; a price holds from now on, or from a later moment"
    row = {"kind": request.of, "pool": request.pool, "price": request.price, "per": request.per, "request": request.request}
    await connection.execute(insert(prices).values(**row, valid_from=request.valid_from).on_conflict_do_nothing())
    return None


async def all_prices(connection: AsyncConnection) -> list[PriceOf]:
    """By kind, pool and beginning."""
    columns = (prices.c.kind, prices.c.pool, prices.c.price, prices.c.per, prices.c.valid_from)
    order = (prices.c.kind, prices.c.pool.nulls_first(), prices.c.valid_from, prices.c.id)
    rows = (await connection.execute(select(*columns).order_by(*order))).all()
    return [PriceOf(of=row.kind, pool=row.pool, price=row.price, per=row.per, valid_from=row.valid_from) for row in rows]
