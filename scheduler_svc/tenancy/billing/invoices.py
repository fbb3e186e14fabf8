"""Invoices: quantities and money of tenants by day, from the view `tenant_invoice`."""

from datetime import date

from sqlalchemy import column, select, table
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import InvoiceLine

_KEY = ("day", "tenant", "pool", "kind")
_invoice = table("tenant_invoice", *map(column, (*_KEY, "quantity", "money")))


async def invoice_lines(
    connection: AsyncConnection, tenant: str | None, first: date | None, last: date | None, *, after: int, most: int
) -> list[InvoiceLine]:
    """Of one tenant or all, from day `first` to day `last`, by day, tenant, pool and kind: at most so many after the first `after`."""
    statement = select(*_invoice.c).order_by(*(_invoice.c[name] for name in _KEY)).offset(after).limit(most)
    if tenant is not None:
        statement = statement.where(_invoice.c.tenant == tenant)
    if first is not None:
        statement = statement.where(_invoice.c.day >= first)
    if last is not None:
        statement = statement.where(_invoice.c.day <= last)
    return [InvoiceLine.model_validate(dict(row)) for row in (await connection.execute(statement)).mappings()]
