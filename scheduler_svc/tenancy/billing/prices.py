"""Prices, which operators append and never change, so that past invoices stay unchanged; and invoices by day.

Work is billed at the prices valid when it is booked. Invoices are the view `tenant_invoice`.
"""

from datetime import date

import structlog
from sqlalchemy import column, func, select, table
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import AskInvoice, AskPrices, InvoiceAnswer, InvoiceLine, PriceOf, PricesAnswer, SetPrice, as_json
from scheduler_svc.base.tables import prices
from scheduler_svc.tenancy.question import Question, page
from scheduler_svc.tenancy.requests import Answering, Refusal

PAGE_SIZE = 500
"""Maximum lines per page."""
_KEY = ("day", "tenant", "pool", "kind")
_invoice = table("tenant_invoice", *map(column, (*_KEY, "quantity", "money")))

log = structlog.get_logger()


async def set_price(answer: Answering, request: SetPrice) -> None:
    """Handle a job of `jobs.set-price._all`. Raises: Refusal."""
    await add_price(answer.tx.connection, request)
    given = {name: value for name, value in as_json(request).items() if name != "request"}
    answer.accept(request.of, given, given)
    log.info("price_set", of=request.of, pool=request.pool, price=str(request.price), per=request.per)


async def add_price(connection: AsyncConnection, request: SetPrice) -> None:
    """Append a price. A repeated request changes nothing. Raises: Refusal."""
    known = (await connection.execute(select(prices.c.id).where(prices.c.request == request.request))).first()
    if known is not None:
        return
    now = (await connection.execute(select(func.now()))).scalar_one()
    if request.valid_from is not None and request.valid_from < now:
        raise Refusal(f"valid_from: {request.valid_from.isoformat()} is in the past; a price holds from now on, or from a later moment")
    row = {"kind": request.of, "pool": request.pool, "price": request.price, "per": request.per, "request": request.request}
    await connection.execute(insert(prices).values(**row, valid_from=request.valid_from).on_conflict_do_nothing())


async def all_prices(connection: AsyncConnection) -> list[PriceOf]:
    """All prices, by kind, pool and start of validity."""
    columns = (prices.c.kind, prices.c.pool, prices.c.price, prices.c.per, prices.c.valid_from)
    order = (prices.c.kind, prices.c.pool.nulls_first(), prices.c.valid_from, prices.c.id)
    rows = (await connection.execute(select(*columns).order_by(*order))).all()
    return [PriceOf(of=row.kind, pool=row.pool, price=row.price, per=row.per, valid_from=row.valid_from) for row in rows]


async def answer_prices(question: Question, _: AskPrices) -> PricesAnswer:
    async with question.reading() as connection:
        return PricesAnswer(prices=await all_prices(connection))


async def invoice_lines(
    connection: AsyncConnection, tenant: str | None, first: date | None, last: date | None, *, after: int, most: int
) -> list[InvoiceLine]:
    """Up to `most` invoice lines from offset `after`, of one tenant or all, from day `first` to `last`; by day, tenant, pool and kind."""
    statement = select(*_invoice.c).order_by(*(_invoice.c[name] for name in _KEY)).offset(after).limit(most)
    if tenant is not None:
        statement = statement.where(_invoice.c.tenant == tenant)
    if first is not None:
        statement = statement.where(_invoice.c.day >= first)
    if last is not None:
        statement = statement.where(_invoice.c.day <= last)
    return [InvoiceLine.model_validate(dict(row)) for row in (await connection.execute(statement)).mappings()]


async def answer_invoice(question: Question, request: AskInvoice) -> InvoiceAnswer:
    async with question.reading() as connection:
        found = await invoice_lines(connection, question.tenant, request.first, request.last, after=request.cursor, most=PAGE_SIZE)
    kept, has_more = page(found, PAGE_SIZE)
    return InvoiceAnswer(lines=kept, cursor=request.cursor + len(kept) if has_more else None)
