"""Tables of invoices, prices and budgets. Pure."""

import csv
from collections.abc import Sequence
from io import StringIO

from rich.table import Table
from rich.text import Text

from common.messages import BudgetOf, InvoiceLine, PriceOf
from marlaas.reporting.listing import Field, listing

COLUMNS = ("day", "tenant", "pool", "kind", "quantity", "money")


def invoice_csv(lines: Sequence[InvoiceLine]) -> str:
    """With a line of names, amounts to the last digit."""
    written = StringIO()
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow(COLUMNS)
    rows.writerows([str(line.model_dump()[name]) for name in COLUMNS] for line in lines)
    return written.getvalue()


def invoice_table(lines: Sequence[InvoiceLine], width: int | None = None) -> Table:
    fields = [Field[InvoiceLine](name, lambda line, name=name: Text(str(line.model_dump()[name]))) for name in COLUMNS]
    return listing(lines, fields, lambda _: "", width)


def budget_table(budgets: Sequence[BudgetOf], width: int | None = None) -> Table:
    fields = [Field[BudgetOf](name, lambda one, name=name: Text(str(one.model_dump()[name]))) for name in BudgetOf.model_fields]
    return listing(budgets, fields, lambda _: "", width)


def price_table(prices: Sequence[PriceOf], width: int | None = None) -> Table:
    fields: list[Field[PriceOf]] = [
        Field("of", lambda one: Text(one.of)),
        Field("pool", lambda one: Text(one.pool or "all")),
        Field("price", lambda one: Text(format(one.price, "f"))),
        Field("per", lambda one: Text(str(one.per))),
        Field("valid from", lambda one: Text(one.valid_from.isoformat(timespec="seconds"))),
    ]
    return listing(prices, fields, lambda _: "", width)
